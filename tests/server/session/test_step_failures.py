"""Steps: failures, invalid edits, and the results of the other requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import EditProcessor, EditRequest, InvalidArgument, LogitportError, ProcessorFailed, RowEdits
from logitport.errors import to_proto
from tests.server.session.actions import INF, VOCAB, EditsAction, LogitsAction, add, deny, failed, logits_of, process

if TYPE_CHECKING:
    from collections.abc import Callable


def bomb(error: BaseException) -> Callable[..., Any]:
    def explode(*_: Any) -> Any:
        raise error.with_traceback(None)

    return explode


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
    logits, outcome = process([wrong, right], here=here)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) == {wrong.slot}
    assert isinstance(outcome.failures[wrong.slot].error, error)
    assert outcome.failures[wrong.slot].error.processor == "EditsAction"
    assert +outcome.applied == Counter(EditsAction=1)


def test_the_error_of_invalid_edits_names_their_processor(admission: Any) -> None:
    request = admission(VOCAB)((deny(3), {}), (EditsAction(lambda _, edits: edits.deny([99])), {}))
    request.chain[1].dialect.name = "the wrong one"
    _, outcome = process([request], here=False)
    assert outcome.failures[0].error.processor == "the wrong one"


def test_a_skipped_request_has_no_edits_in_any_row(admission: Any) -> None:
    admit = admission(VOCAB)

    def wrong_after_a_draft(request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1 if len(request.history) < 2 else 99])

    request = admit((EditsAction(wrong_after_a_draft), {}), prompt=[5], skip=True)
    _, outcome = process([request, (request, 1), admit((deny(2), {}))], drafts={request: [6]}, here=False)
    assert outcome.pack(VOCAB).rows.tolist() == [2]
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
    logits, outcome = process([admit((ChangesLists(act), {})), admit((deny(3), {}))], here=here)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) <= {0}
