"""The tests of transcripts fail where they should."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.docs.transcripts import Block, check_transcript

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("$ export A=1\n$ echo a; echo $A\na\n...\n", ""),
        ("$ echo a\nb\n", "the page has:\nb\n"),
        ("$ echo a\n", "it printed:\na\n"),
        ("$ true\na\n", "the page has:\na\n"),
        ("$ echo a >&2\nb\n", "it printed:\na\n"),
        ("$ exit\n$ echo a\na\n", "the shell has ended early"),
    ],
)
def test_other_output_fails(content: str, problem: str, tmp_path: Path) -> None:
    if not problem:
        check_transcript(Block("text", content), tmp_path, os.environ)
        return
    with pytest.raises(AssertionError, match=problem):
        check_transcript(Block("text", content), tmp_path, os.environ)
