"""Steps: invalid edits, and processors that change the lists that are passed to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import EditProcessor, EditRequest, InvalidArgument, LogitportError, ProcessorFailed, RowEdits
from logitport.ops import apply_edits
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable


VOCAB = 8
INF = float("inf")


class EditsAction(EditProcessor):
    """Runs a function on the edits of each row."""

    def __init__(self, act: Callable[[EditRequest, RowEdits], Any]) -> None:
        self.act = act

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.act(request, edits)


def deny(*token_ids: int) -> EditsAction:
    return EditsAction(lambda _, edits: edits.deny(token_ids))


def logits_of(rows: int) -> torch.Tensor:
    return torch.arange(float(rows * VOCAB)).reshape(rows, VOCAB)


def failed(outcome: StepOutcome) -> dict[int, tuple[type[LogitportError], bool]]:
    return {slot: (type(failure.error), failure.skipped) for slot, failure in outcome.failures.items()}


@pytest.mark.parametrize("here", [True, False], ids=["applied here", "sent as edits"])
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda _, edits: edits.deny([1, VOCAB]), InvalidArgument),
        (lambda _, edits: edits.force(-1), InvalidArgument),
        (lambda _, edits: edits.allow([2**40]), InvalidArgument),
        (lambda _, edits: edits.deny(["x"]), InvalidArgument),
        (lambda _, edits: edits.deny(range(100)), InvalidArgument),
        (lambda _, edits: edits.bitmask([0, 0]), LogitportError),
        (lambda _, edits: edits.bias([1], [INF]), LogitportError),
        (lambda _, edits: edits.bias([1], [1, 2]), LogitportError),
        (lambda _, edits: edits.nonsense(), ProcessorFailed),
    ],
)
def test_invalid_edits_fail_only_their_request(
    admission: Any, act: Callable[..., Any], error: type[LogitportError], here: bool
) -> None:
    admit = admission(VOCAB)
    right, wrong = admit((deny(3), {})), admit((EditsAction(act), {}))
    rows = [Row(0, wrong), Row(1, right)]
    logits = logits_of(2)
    outcome = StepOutcome()
    run(Rows(rows), {}, VOCAB, logits if here else None, outcome, StepTime(60.0))
    if not here:
        apply_edits(outcome.pack(VOCAB), logits)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) == {wrong.slot}
    assert isinstance(outcome.failures[wrong.slot].error, error)
    assert outcome.failures[wrong.slot].error.processor == "EditsAction"
    assert +outcome.applied == Counter(EditsAction=1)


def test_the_error_of_invalid_edits_names_their_processor(admission: Any) -> None:
    request = admission(VOCAB)((deny(3), {}), (EditsAction(lambda _, edits: edits.deny([99])), {}))
    request.chain[1].dialect.name = "the wrong one"
    rows = [Row(0, request)]
    outcome = StepOutcome()
    run(Rows(rows), {}, VOCAB, None, outcome, StepTime(60.0))
    outcome.pack(VOCAB)
    assert outcome.failures[0].error.processor == "the wrong one"


def test_a_skipped_request_has_no_edits_in_any_row(admission: Any) -> None:
    admit = admission(VOCAB)

    def wrong_after_a_draft(request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1 if len(request.history) < 2 else 99])

    request = admit((EditsAction(wrong_after_a_draft), {}), prompt=[5], skip=True)
    rows = [Row(0, request), Row(1, request, 1), Row(2, admit((deny(2), {})))]
    outcome = StepOutcome()
    run(Rows(rows), {request: [6]}, VOCAB, None, outcome, StepTime(60.0))
    edits = outcome.pack(VOCAB)
    assert edits.rows.tolist() == [2]
    assert failed(outcome) == {0: (InvalidArgument, True)}


class ChangesLists(EditProcessor):
    """Runs a function on the lists that `edit_batch` gets."""

    def __init__(self, act: Callable[[Any, Any], Any]) -> None:
        self.act = act

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        raise NotImplementedError

    def edit_batch(self, requests: Any, edits: Any) -> None:
        self.act(requests, edits)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    "act",
    [
        lambda requests, edits: edits.clear(),
        lambda requests, edits: edits.append(RowEdits()),
        lambda requests, edits: edits.__setitem__(0, None),
        lambda requests, edits: requests.clear(),
        lambda requests, edits: edits[0]._edits.append("nonsense"),
        lambda requests, edits: edits[0].__setattr__("_edits", None),
    ],
    ids=["clear", "append", "set", "clear requests", "nonsense", "unset"],
)
def test_a_processor_that_changes_its_lists_affects_only_its_requests(
    admission: Any, act: Callable[[Any, Any], Any], here: bool
) -> None:
    admit = admission(VOCAB)
    rows = [Row(0, admit((ChangesLists(act), {}))), Row(1, admit((deny(3), {})))]
    logits = logits_of(2)
    outcome = StepOutcome()
    run(Rows(rows), {}, VOCAB, logits if here else None, outcome, StepTime(60.0))
    if not here:
        apply_edits(outcome.pack(VOCAB), logits)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) <= {0}
