"""Edits of a step's groups. Rows of failed requests are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from logitport import History
from logitport.core.edits import EditKind, Edits, RowEdits
from logitport_session.requests.active_request import ActiveRequest
from logitport_session.steps.grouping import Group, Row
from logitport_session.steps.outcome import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_session.dialects.base import EditsResult

VOCAB = 400

Form: TypeAlias = "Callable[[Sequence[RowEdits]], EditsResult]"


class NamedDialect:
    """The part of a dialect that `StepOutcome` uses."""

    shipped = True
    domain = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = f"key of {name}"


def as_rows(edits: Sequence[RowEdits]) -> EditsResult:
    return edits


def as_columns(edits: Sequence[RowEdits]) -> EditsResult:
    """Return the form in which a worker sends edits."""
    return Edits.pack(enumerate(edits), VOCAB)


@pytest.fixture
def requests() -> list[ActiveRequest]:
    return [ActiveRequest(slot, 1, History([1]), [], skip=False) for slot in range(4)]


def group_result(requests: list[ActiveRequest], name: str, rows: list[int], form: Form) -> tuple[Any, EditsResult]:
    """Return a group and its edits, which deny the ids from 0 to i in row i."""
    edits = [RowEdits() for _ in rows]
    for row, row_edits in zip(rows, edits, strict=True):
        row_edits.deny(range(row + 1))
    dialect: Any = NamedDialect(name)
    return Group(dialect, [Row(row, requests[row]) for row in rows]), form(edits)


def denied_ids(edits: Edits) -> list[tuple[int, list[int]]]:
    offsets = edits.offsets.tolist()
    spans = zip(edits.rows.tolist(), offsets, offsets[1:], strict=False)
    return [(row, edits.ids[begin:end].tolist()) for row, begin, end in spans]


def as_lists(edits: Sequence[RowEdits]) -> EditsResult:
    """Return the form in which the compiled core returns edits: columns without bitmasks."""
    packed = Edits.pack(enumerate(edits), 100_000)
    assert EditKind.BITMASK not in packed.kinds
    return packed


@pytest.mark.parametrize("form", [as_rows, as_columns, as_lists])
def test_long_lists_become_bitmasks(requests: list[ActiveRequest], form: Form) -> None:
    edits = RowEdits()
    edits.deny(range(14))  # a bitmask has 13 words
    dialect: Any = NamedDialect("one")
    outcome = StepOutcome([(Group(dialect, [Row(2, requests[2])]), form([edits]))])
    packed = outcome.pack(VOCAB)
    assert (packed.rows.tolist(), packed.kinds.tolist(), len(packed.ids)) == ([2], [EditKind.BITMASK], 13)


@pytest.mark.parametrize("first", [as_rows, as_columns])
@pytest.mark.parametrize("later", [as_rows, as_columns])
def test_edits_of_several_processors_are_packed_in_order(
    requests: list[ActiveRequest], first: Form, later: Form
) -> None:
    both = [group_result(requests, "one", [1, 3], first), group_result(requests, "two", [0, 1], later)]
    outcome = StepOutcome(both)
    assert denied_ids(outcome.pack(VOCAB)) == [(0, [0]), (1, [0, 1]), (1, [0, 1]), (3, [0, 1, 2, 3])]
    assert outcome.applied == {"key of one": 2, "key of two": 2}
    assert outcome.names == {"key of one": "one", "key of two": "two"}
