"""Suspect lines of processors, found in their source."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from logitport.dialects import InDialect
from logitport_lint import CHANGES, DISCARD, DRAW, find
from tests.lint import suspects

KINDS = {*CHANGES, DRAW, DISCARD}
CASES = [
    suspects.Frozen,
    suspects.Classes,
    suspects.Globals,
    suspects.enclosed(),
    suspects.Draws,
    suspects.Seeds,
    suspects.Halves,
    suspects.HalvesWell,
    InDialect(suspects.for_dynamo, "dynamo"),
]


def marked(objects: list[Any]) -> dict[int, str]:
    """The lines of classes and functions that have a mark, with it."""
    found = {}
    for one in objects:
        lines, first = inspect.getsourcelines(one)
        for number, line in enumerate(lines, first):
            if mark := re.search(r"# ([a-z ]+)$", line):
                found[number] = mark[1]
    return found


@pytest.mark.parametrize("processor", CASES, ids=lambda one: getattr(one, "__name__", "InDialect"))
def test_the_marked_lines_are_found(processor: Any) -> None:
    author = getattr(processor, "processor", processor)
    helpers = [suspects.helper] if author is suspects.Globals else []
    found = {one.line: one.kind for one in find(processor, KINDS)}
    assert found == marked([author, *helpers])


def test_a_finding_names_the_file_the_line_and_the_code() -> None:
    first = find(suspects.Halves, {DISCARD})[0]
    assert first.file == suspects.__file__
    assert str(first).startswith(
        f"{suspects.__file__}:{first.line}: `row = row / 2  # discard`: the new value of 'row'"
    )


@pytest.mark.parametrize("processor", ["top_k", 3, None, eval("lambda input_ids, scores: scores"), print])
def test_what_has_no_source_has_no_findings(processor: Any) -> None:
    assert find(processor, KINDS) == ()
