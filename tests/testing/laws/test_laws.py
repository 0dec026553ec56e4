"""The choice of the laws that apply to a processor."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import EditProcessor, EditRequest, ProcessorRef, RowEdits, payload
from logitport_builtins import DisallowedTokens
from logitport_testing.laws.processor_laws import _is_shipped


class program(EditProcessor):  # noqa: N801 - a payload holds this name, and a program has a key of this name
    """A class with code."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """Change nothing."""


CODE = payload.dumps(program)
PROGRAM = payload.seal_program(b"", "Ban")


@pytest.mark.parametrize(
    ("processor", "shipped"),
    [
        (program, True),
        (CODE, True),
        (f" {CODE}", True),
        (PROGRAM, False),
        ("disallowed_tokens", False),
        (DisallowedTokens, False),
        (ProcessorRef(digest="0" * 64), False),
    ],
)
def test_only_code_is_shipped(processor: Any, shipped: bool) -> None:
    assert _is_shipped(processor) == shipped
