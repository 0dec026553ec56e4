"""docs/recipes.md: its code is that of the files, its chains are valid, and its command prints what it shows."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest

from examples.programs.think_answer_limits import ThinkAnswerLimits
from logitport.integrations.common.chains import chain_of
from tests.docs.pages import ROOT, read
from tests.docs.transcripts import blocks, check_transcript, sections

RECIPES = sections(read("docs/recipes.md"))


def files(section: str) -> list[Path]:
    return [ROOT / "docs" / name for name in re.findall(r"\]\((\.\./examples/[\w./]+)\)", section)]


@pytest.mark.parametrize("title", RECIPES)
def test_code_is_quoted_from_the_files(title: str) -> None:
    texts = [path.read_text() for path in files(RECIPES[title])]
    assert texts
    quoted = [block.content for block in blocks(RECIPES[title], "python")]
    assert any(code in text for code in quoted for text in texts)
    for code in quoted:
        if not any(code in text for text in texts):
            ast.parse(code)  # an excerpt of the reader's own program


def test_every_file_belongs_to_a_recipe() -> None:
    named = {path.resolve() for section in RECIPES.values() for path in files(section)}
    assert set((ROOT / "examples/recipes").glob("*.py")) <= named


def test_the_chain_is_one_of_the_program() -> None:
    (chain,) = [block.content for section in RECIPES.values() for block in blocks(section, "json")]
    ((_, params),) = chain_of({"logitport": json.loads(chain)})
    ThinkAnswerLimits.validate_params(params)


def test_the_command_prints_what_the_page_shows() -> None:
    (transcript,) = blocks(RECIPES["JSON without whitespace"], "text")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    check_transcript(transcript, ROOT, {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
