"""The lines of a processor that made invalid edits."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import InvalidArgument, RowEdits
from logitport.system.installation import OUR_PACKAGES

SOURCE = """
def edit(edits):
    edits.deny([1])
    edits.deny([9])
"""


def error_of(module: dict[str, Any], edits: RowEdits) -> InvalidArgument:
    exec(compile(SOURCE, "mine.py", "exec"), module)
    module["edit"](edits)
    with pytest.raises(InvalidArgument) as raised:
        edits.check(8)
    return raised.value


def test_the_line_of_a_processor() -> None:
    trace = error_of({"__package__": "mine"}, RowEdits()).remote_traceback
    assert 'File "mine.py", line 4, in edit' in trace
    assert trace.endswith("InvalidArgument: DENY of token id 9: ids must lie in [0, 8)\n")


def test_edits_after_those_of_another_processor() -> None:
    first, joined = RowEdits(), RowEdits()
    first.deny([2])
    first.bias([3], 1.0)
    joined.extend(first)
    assert "line 4, in edit" in error_of({}, joined).remote_traceback


def test_edits_that_were_forced_away_leave_no_line() -> None:
    edits = RowEdits()
    edits.deny([9])
    edits.deny([9])
    edits.force(1)
    edits.say(*next(iter(denying(9))))
    with pytest.raises(InvalidArgument) as raised:
        edits.check(8)
    assert raised.value.remote_traceback == ""


def denying(token_id: int) -> RowEdits:
    edits = RowEdits()
    edits.deny([token_id])
    return edits


@pytest.mark.parametrize("package", [*OUR_PACKAGES, "logitport_builtins.grammar", "logitport_session.dialects"])
def test_code_of_logitport_is_not_shown(package: str) -> None:
    assert error_of({"__package__": package}, RowEdits()).remote_traceback == ""
