"""What groups said, of rows whose requests go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from logitport import History, ProcessorFailed
from logitport.core.edits import Edits, RowEdits
from logitport_server.dialects.base import by_row
from logitport_server.session.active_request import ActiveRequest
from logitport_server.session.grouping import Group, Row
from logitport_server.session.outcome import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.dialects.base import EditsResult

VOCAB = 400

Say: TypeAlias = "Callable[[Sequence[RowEdits]], EditsResult]"


class Named:
    """As much of a dialect as an outcome asks for."""

    shipped = True
    domain = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = f"key of {name}"


def as_rows(said: Sequence[RowEdits]) -> EditsResult:
    return said


def as_columns(said: Sequence[RowEdits]) -> EditsResult:
    """As it comes from a worker."""
    return Edits.pack(enumerate(said), VOCAB)


@pytest.fixture
def requests() -> list[ActiveRequest]:
    return [ActiveRequest(slot, 1, History([1]), [], skip=False) for slot in range(4)]


def served(requests: list[ActiveRequest], name: str, rows: list[int], say: Say) -> tuple[Any, EditsResult]:
    """Of row i the processor denies the ids from 0 to i."""
    said = [RowEdits() for _ in rows]
    for row, row_edits in zip(rows, said, strict=True):
        row_edits.deny(range(row + 1))
    dialect: Any = Named(name)
    return Group(dialect, [Row(row, requests[row]) for row in rows]), say(said)


def told(edits: Edits) -> list[tuple[int, list[int]]]:
    offsets = edits.offsets.tolist()
    spans = zip(edits.rows.tolist(), offsets, offsets[1:], strict=False)
    return [(row, edits.ids[begin:end].tolist()) for row, begin, end in spans]


@pytest.mark.parametrize("say", [as_rows, as_columns])
def test_of_one_processor(requests: list[ActiveRequest], say: Say) -> None:
    outcome = StepOutcome([served(requests, "one", [1, 3], say)])
    assert told(outcome.pack(VOCAB)) == [(1, [0, 1]), (3, [0, 1, 2, 3])]
    assert outcome.applied == {"key of one": 2}
    assert sorted(outcome.edits) == [1, 3]


@pytest.mark.parametrize("first", [as_rows, as_columns])
@pytest.mark.parametrize("later", [as_rows, as_columns])
def test_of_several_in_order(requests: list[ActiveRequest], first: Say, later: Say) -> None:
    both = [served(requests, "one", [1, 3], first), served(requests, "two", [0, 1], later)]
    outcome = StepOutcome(both)
    assert told(outcome.pack(VOCAB)) == [(0, [0]), (1, [0, 1]), (1, [0, 1]), (3, [0, 1, 2, 3])]
    assert outcome.applied == {"key of one": 2, "key of two": 2}
    assert outcome.names == {"key of one": "one", "key of two": "two"}


@pytest.mark.parametrize("say", [as_rows, as_columns])
def test_a_request_that_failed_takes_no_part(requests: list[ActiveRequest], say: Say) -> None:
    outcome = StepOutcome([served(requests, "one", [1, 3], say), served(requests, "two", [1], say)])
    outcome.fail(requests[1], ProcessorFailed("it did"))
    assert told(outcome.pack(VOCAB)) == [(3, [0, 1, 2, 3])]
    assert outcome.applied == {"key of one": 1}


@pytest.mark.parametrize("say", [as_rows, as_columns])
def test_rows_of_which_all_is_denied(requests: list[ActiveRequest], say: Say) -> None:
    outcome = StepOutcome([served(requests, "one", [0, 2], say)])
    assert outcome.all_denied(3) == [2]
    assert outcome.all_denied(VOCAB) == []


def test_what_cannot_be_fails_its_request_alone(requests: list[ActiveRequest]) -> None:
    members, said = served(requests, "one", [1, 3], as_rows)
    list(by_row(said, 2))[1].deny([VOCAB])
    outcome = StepOutcome([(members, said)])
    assert told(outcome.pack(VOCAB)) == [(1, [0, 1])]
    assert list(outcome.failures) == [3]


def test_readers_of_logits_say_nothing(requests: list[ActiveRequest]) -> None:
    members, _ = served(requests, "reader", [0, 1], as_rows)
    outcome = StepOutcome([(members, ()), served(requests, "one", [1], as_columns)])
    assert told(outcome.pack(VOCAB)) == [(1, [0, 1])]
    assert outcome.applied == {"key of reader": 2, "key of one": 1}
