"""Steps: failures, and the results of the other requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    LogitportError,
    ProcessorFailed,
    RowEdits,
)
from logitport.errors import to_proto
from logitport.ops import apply_edits
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_session.requests.active_request import ActiveRequest

VOCAB = 8
INF = float("inf")


class LogitsAction(CustomLogitProcessor):
    """Runs a function on the logits."""

    __slots__ = ("act",)  # an attribute would count as state

    def __init__(self, act: Callable[[torch.Tensor, list[dict[str, Any]]], Any]) -> None:
        self.act = act

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> Any:
        return self.act(logits, custom_param_list)


class EditsAction(EditProcessor):
    """Runs a function on the edits of each row."""

    def __init__(self, act: Callable[[EditRequest, RowEdits], Any]) -> None:
        self.act = act

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.act(request, edits)


def add(amount: float) -> LogitsAction:
    return LogitsAction(lambda logits, _: logits.add_(amount))


def deny(*token_ids: int) -> EditsAction:
    return EditsAction(lambda _, edits: edits.deny(token_ids))


def bomb(error: BaseException) -> Callable[..., Any]:
    def explode(*_: Any) -> Any:
        raise error.with_traceback(None)

    return explode


def logits_of(rows: int) -> torch.Tensor:
    return torch.arange(float(rows * VOCAB)).reshape(rows, VOCAB)


def process(
    rows: Sequence[ActiveRequest | tuple[ActiveRequest, int]],
    logits: torch.Tensor | None = None,
    drafts: Mapping[ActiveRequest, Sequence[int]] | None = None,
) -> tuple[torch.Tensor, StepOutcome]:
    """Run a step with its logits."""
    if logits is None:
        logits = logits_of(len(rows))
    placed = [Row(at, *(row if isinstance(row, tuple) else (row,))) for at, row in enumerate(rows)]
    outcome = StepOutcome()
    run(Rows(placed), drafts or {}, VOCAB, logits, outcome, StepTime(60.0))
    return logits, outcome


def failed(outcome: StepOutcome) -> dict[int, tuple[type[LogitportError], bool]]:
    return {slot: (type(failure.error), failure.skipped) for slot, failure in outcome.failures.items()}


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda logits, _: None, "returned NoneType; return the logits"),
        (lambda logits, _: logits.numpy(), "returned ndarray"),
        (lambda logits, _: logits[:1], r"returned a tensor of shape \[1, 8\]"),
        (lambda logits, _: logits[:, :-1], r"returned a tensor of shape \[2, 7\]"),
        (lambda logits, _: logits.unsqueeze_(0), r"returned a tensor of shape \[1, 2, 8\]"),
        (lambda logits, _: logits.t_(), r"returned a tensor of shape \[8, 2\]"),
        (lambda logits, _: logits.int(), r"returned a tensor of dtype torch\.int32"),
        (lambda logits, _: logits > 0, r"returned a tensor of dtype torch\.bool"),
        (lambda logits, _: logits.to(torch.complex64), r"returned a tensor of dtype torch\.complex64"),
        (lambda logits, _: logits.to_sparse(), r"returned a tensor of layout torch\.sparse_coo"),
        (lambda logits, _: logits.to("meta"), "returned a tensor of layout .* on device meta"),
    ],
)
def test_invalid_results_fail_their_request(
    admission: Any, act: Callable[..., Any], message: str, scattered: bool
) -> None:
    admit = admission(VOCAB)
    wrong, right = admit((LogitsAction(act), {})), admit((add(1), {}))
    logits, outcome = process([wrong, right, wrong] if scattered else [wrong, wrong, right])
    assert failed(outcome) == {0: (ProcessorFailed, False)}
    with pytest.raises(ProcessorFailed, match=f"processor LogitsAction {message}"):
        raise outcome.failures[0].error
    at = 1 if scattered else 2
    assert torch.equal(logits[at], logits_of(3)[at] + 1)
    assert outcome.applied == {"LogitsAction": 1}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(InvalidArgument):
    def __init__(self) -> None:
        pass


ERRORS = [
    ValueError("a reason"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    BaseException("bare"),
    Unprintable(),
    ValueError("\ud800 a lone surrogate"),
    ValueError("long " * 100_000),
    ValueError(b"\xff", None),
    Bare(),
    InvalidArgument({"not": "text"}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [LogitsAction, EditsAction])
def test_any_exception_fails_its_requests_and_can_be_sent(admission: Any, kind: Any, error: BaseException) -> None:
    admit = admission(VOCAB)
    wrong, wrong_too, right = admit((kind(bomb(error)), {})), admit(), admit((add(1), {}), (deny(0), {}))
    wrong_too.chain.extend(wrong.chain)
    logits, outcome = process([wrong, right, wrong_too])
    assert set(outcome.failures) == {wrong.slot, wrong_too.slot}
    assert logits[1].tolist() == [-INF, *(logits_of(3)[1, 1:] + 1).tolist()]
    for failure in outcome.failures.values():
        sent = to_proto(failure.error)
        assert sent.processor == kind.__name__
        assert 0 < len(sent.message) < 4096
        assert len(sent.remote_traceback) < 8192
        if not isinstance(error, LogitportError):
            assert type(failure.error) is ProcessorFailed
            assert type(error).__name__ in sent.message
            assert "in explode" in sent.remote_traceback
            assert "logitport_server" not in sent.remote_traceback


@pytest.mark.parametrize("here", [True, False])
def test_an_exception_of_a_logits_free_processor_fails_only_one_request(admission: Any, here: bool) -> None:
    admit = admission(VOCAB)

    def trip(request: EditRequest, edits: RowEdits) -> None:
        edits.deny([request.history.last_output])
        if request.history.last_output == 5:
            raise ValueError("five")

    trips = EditsAction(trip)
    requests = [admit((trips, {}), output=[token_id]) for token_id in (4, 5, 6)]
    rows = [Row(at, request) for at, request in enumerate(requests)]
    logits, outcome = logits_of(3), StepOutcome()
    run(Rows(rows), {}, VOCAB, logits if here else None, outcome, StepTime(60.0))
    if not here:
        apply_edits(outcome.pack(VOCAB), logits)
    assert failed(outcome) == {1: (ProcessorFailed, False)}
    assert [row for row in (logits == -INF).nonzero().tolist() if row[0] != 1] == [[0, 4], [2, 6]]
    assert outcome.applied == {"EditsAction": 2}


def test_a_failed_request_is_not_passed_to_later_processors(admission: Any) -> None:
    after = []
    request = admission(VOCAB)(
        (add(1), {}),
        (LogitsAction(bomb(ValueError())), {}),
        (LogitsAction(lambda logits, _: after.append(1) or logits), {}),
    )
    _, outcome = process([request])
    assert after == []
    assert failed(outcome) == {0: (ProcessorFailed, False)}


def test_rows_of_a_failed_request_are_not_counted_as_applied(admission: Any) -> None:
    admit = admission(VOCAB)
    add_one = add(1)
    skipped, right = admit((add_one, {}), (EditsAction(bomb(ValueError())), {}), skip=True), admit((add_one, {}))
    _, outcome = process([skipped, right, skipped])
    assert +outcome.applied == Counter(LogitsAction=1)


def half_way(logits: torch.Tensor, _: Any) -> torch.Tensor:
    logits[:, : VOCAB // 2] = float("nan")
    raise ValueError("half-way")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("scattered", [False, True])
def test_skip_leaves_the_rows_bit_identical(admission: Any, place: int, scattered: bool) -> None:
    admit = admission(VOCAB)
    chain = [(add(1), {}), (EditsAction(lambda _, edits: edits.force(1)), {}), (LogitsAction(half_way), {})]
    skipping, other = admit(*chain[-1 - place :], skip=True), admit((add(1), {}))
    rows = [skipping, other, skipping] if scattered else [skipping, skipping, other]
    before = torch.randn(3, VOCAB)
    before[0, 0], before[0, 1], before[0, 2] = float("nan"), -0.0, -INF
    logits, outcome = process(rows, before.clone())
    for at, request in enumerate(rows):
        expected = before[at] if request is skipping else before[at] + 1
        assert torch.equal(logits[at].view(torch.int32), expected.view(torch.int32))
    assert failed(outcome) == {0: (ProcessorFailed, True)}
    assert outcome.edits == {}


def nan_in(row: int) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    def act(logits: torch.Tensor, _: Any) -> torch.Tensor:
        logits[row, VOCAB - 1] = float("nan")
        return logits

    return act


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("rows", [(0, 1, 2), (1, 3, 5), (0, 1, 3)])
def test_a_nan_fails_only_the_request_of_its_row(admission: Any, rows: tuple[int, ...], place: int) -> None:
    admit = admission(VOCAB)
    broken, other = LogitsAction(nan_in(place)), admit((deny(1), {}))
    served = {row: admit((broken, {})) for row in rows}
    requests = [served.get(row, other) for row in range(6)]
    _, outcome = process(requests)
    assert failed(outcome) == {served[rows[place]].slot: (ProcessorFailed, False)}


def test_a_nan_from_the_engine_in_an_unprocessed_row_fails_no_request(admission: Any) -> None:
    admit = admission(VOCAB)
    reads, other = admit((add(1), {})), admit()
    before = logits_of(4)
    before[1] = float("nan")
    _, outcome = process([reads, other, other, reads], before)
    assert failed(outcome) == {}


def test_one_group_with_a_skipping_and_an_aborting_request(admission: Any) -> None:
    admit = admission(VOCAB)
    broken = LogitsAction(half_way)
    skipping, aborting = admit((broken, {}), skip=True), admit((broken, {}))
    logits, outcome = process([skipping, aborting])
    assert failed(outcome) == {0: (ProcessorFailed, True), 1: (ProcessorFailed, False)}
    assert torch.equal(logits[0], logits_of(2)[0])
