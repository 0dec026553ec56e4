"""The heartbeat: chains of a step, in order, and what fails with whom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InvalidParams,
    InvalidTokenId,
    LogitportError,
    ProcessorFailed,
    RowEdits,
    StateLost,
)
from logitport.errors import to_proto
from logitport.ops import apply_edits
from logitport_server.grouping import Row
from logitport_server.step import Outcome, pack, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_server.requests import ActiveRequest

VOCAB = 8
INF = float("inf")


class Reads(CustomLogitProcessor):
    """Does to the logits what a function does."""

    __slots__ = ("act",)  # an attribute would pass for state

    def __init__(self, act: Callable[[torch.Tensor, list[dict[str, Any]]], Any]) -> None:
        self.act = act

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> Any:
        return self.act(logits, custom_param_list)


class Says(EditProcessor):
    """Says of each row what a function says."""

    def __init__(self, act: Callable[[EditRequest, RowEdits], Any]) -> None:
        self.act = act

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.act(request, edits)


def add(amount: float) -> Reads:
    return Reads(lambda logits, _: logits.add_(amount))


def deny(*token_ids: int) -> Says:
    return Says(lambda _, edits: edits.deny(token_ids))


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
) -> tuple[torch.Tensor, Outcome]:
    """Run a step whose logits are here."""
    if logits is None:
        logits = logits_of(len(rows))
    placed = [Row(at, *(row if isinstance(row, tuple) else (row,))) for at, row in enumerate(rows)]
    outcome = Outcome()
    run(placed, drafts or {}, VOCAB, logits, outcome)
    return logits, outcome


def failed(outcome: Outcome) -> dict[int, tuple[type[LogitportError], bool]]:
    return {slot: (type(failure.error), failure.skipped) for slot, failure in outcome.failures.items()}


# Chains


def test_a_chain_runs_in_its_order(admission: Any) -> None:
    admit = admission(VOCAB)
    add_one, double = add(1), Reads(lambda logits, _: logits * 2)
    first, second, none = admit((add_one, {}), (double, {})), admit((double, {}), (add_one, {})), admit()
    logits, outcome = process([first, second, none])
    assert torch.equal(logits[0], (logits_of(3)[0] + 1) * 2)
    assert torch.equal(logits[1], logits_of(3)[1] * 2 + 1)
    assert torch.equal(logits[2], logits_of(3)[2])
    assert outcome.applied == {"Reads": 4}


def test_edits_and_logits_take_turns_in_order(admission: Any) -> None:
    """What reads logits sees what logits-free processors before it did, and they may void what it did."""
    seen = []
    look = Reads(lambda logits, _: seen.append(logits.clone()) or logits.fill_(3))
    force = Says(lambda request, edits: edits.force(request.params["id"]))
    logits, outcome = process([admission(VOCAB)((deny(1), {}), (look, {}), (force, {"id": 5}))])
    assert seen[0][0].tolist() == [0, -INF, 2, 3, 4, 5, 6, 7]
    assert logits.tolist() == [[*[-INF] * 5, 0, *[-INF] * 2]]
    assert outcome.applied == {"Says": 2, "Reads": 1}


def test_parameters_go_with_their_rows(admission: Any) -> None:
    admit = admission(VOCAB)

    def multiply(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        return logits * torch.tensor([row["by"] for row in params])[:, None]

    by = Reads(multiply)
    requests = [admit((by, {"by": 2.0})), admit(), admit((by, {"by": 3.0})), admit((by, {"by": 5.0}))]
    logits, _ = process(requests)
    assert torch.equal(logits, logits_of(4) * torch.tensor([[2.0], [1.0], [3.0], [5.0]]))


def test_rows_of_one_request_share_its_parameters_and_its_state(admission: Any) -> None:
    """As SGLang's num_tokens_in_batch does: the same dict, once for each row."""
    given: list[list[dict[str, Any]]] = []
    request = admission(VOCAB)((Reads(lambda logits, params: given.append(params) or logits), {"a": 1}), prompt=[4])
    process([request, request])
    assert given[0][0] is given[0][1]
    assert given[0][0]["a"] == 1
    assert list(given[0][0]["__req__"].origin_input_ids) == [4]


# Views and copies


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 2), (3,)])
def test_adjacent_rows_are_a_view(admission: Any, rows: tuple[int, ...]) -> None:
    admit = admission(VOCAB)
    seen = []
    look = Reads(lambda logits, _: seen.append((logits.data_ptr(), logits.shape[0])) or logits)
    chosen, other = admit((look, {})), admit()
    logits, _ = process([chosen if row in rows else other for row in range(4)])
    assert seen == [(logits[rows[0]].data_ptr(), len(rows))]


@pytest.mark.parametrize("rows", [(0, 2), (0, 1, 3)])
@pytest.mark.parametrize("in_place", [True, False])
def test_scattered_rows_are_gathered_and_put_back(admission: Any, rows: tuple[int, ...], in_place: bool) -> None:
    admit = admission(VOCAB)
    act = Reads(lambda logits, _: logits.mul_(-1) if in_place else -logits)
    chosen, other = admit((act, {})), admit()
    logits, _ = process([chosen if row in rows else other for row in range(4)])
    assert torch.equal(logits, logits_of(4) * torch.tensor([[-1.0] if row in rows else [1.0] for row in range(4)]))


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("returned", [torch.float64, torch.float32, torch.float16])
def test_another_floating_dtype_is_cast_back(
    admission: Any, dtype: torch.dtype, returned: torch.dtype, scattered: bool
) -> None:
    admit = admission(VOCAB)
    chosen = admit((Reads(lambda logits, _: (logits * 2).to(returned)), {}))
    before = (logits_of(3) / 4).to(dtype)
    logits, _ = process([chosen, admit() if scattered else chosen, chosen], before.clone())
    assert logits.dtype == dtype
    assert torch.equal(logits[[0, 2]], before[[0, 2]] * 2)


def swap_storage(logits: torch.Tensor, _: Any) -> torch.Tensor:
    logits.data = logits + 1
    return logits


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    "act",
    [
        lambda logits, _: logits.clone().requires_grad_() + 1,
        lambda logits, _: torch.nn.Parameter(logits + 1),
        lambda logits, _: (logits + 1).t().contiguous().t(),
        swap_storage,
    ],
    ids=["requires_grad", "parameter", "strided", "swapped storage"],
)
def test_unusual_results_are_taken(admission: Any, act: Callable[..., Any], scattered: bool) -> None:
    admit = admission(VOCAB)
    chosen = admit((Reads(act), {}))
    logits, outcome = process([chosen, admit() if scattered else chosen, chosen])
    assert outcome.failures == {}
    assert torch.equal(logits[[0, 2]], logits_of(3)[[0, 2]] + 1)
    assert not logits.requires_grad


# What fails


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
def test_results_that_are_no_logits(admission: Any, act: Callable[..., Any], message: str, scattered: bool) -> None:
    admit = admission(VOCAB)
    wrong, right = admit((Reads(act), {})), admit((add(1), {}))
    logits, outcome = process([wrong, right, wrong] if scattered else [wrong, wrong, right])
    assert failed(outcome) == {0: (ProcessorFailed, False)}
    with pytest.raises(ProcessorFailed, match=f"processor Reads {message}"):
        raise outcome.failures[0].error
    at = 1 if scattered else 2
    assert torch.equal(logits[at], logits_of(3)[at] + 1)
    assert outcome.applied == {"Reads": 1}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(InvalidParams):
    def __init__(self) -> None:
        pass


ERRORS = [
    ValueError("why"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    BaseException("bare"),
    Mute(),
    ValueError("\ud800 a lone surrogate"),
    ValueError("long " * 100_000),
    ValueError(b"\xff", None),
    Bare(),
    InvalidParams({"not": "text"}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [Reads, Says])
def test_whatever_is_raised_fails_its_requests_and_travels(admission: Any, kind: Any, error: BaseException) -> None:
    admit = admission(VOCAB)
    wrong, wrong_too, right = admit((kind(bomb(error)), {})), admit(), admit((add(1), {}), (deny(0), {}))
    wrong_too.chain.extend(wrong.chain)
    logits, outcome = process([wrong, right, wrong_too])
    assert set(outcome.failures) == {wrong.slot, wrong_too.slot}
    assert logits[1].tolist() == [-INF, *(logits_of(3)[1, 1:] + 1).tolist()]
    for failure in outcome.failures.values():
        travels = to_proto(failure.error)
        assert travels.processor == kind.__name__
        assert 0 < len(travels.message) < 4096
        assert len(travels.remote_traceback) < 8192
        if not isinstance(error, LogitportError):
            assert type(failure.error) is ProcessorFailed
            assert type(error).__name__ in travels.message
            assert "in explode" in travels.remote_traceback
            assert "logitport_server" not in travels.remote_traceback


def test_a_failed_request_goes_no_further(admission: Any) -> None:
    after = []
    request = admission(VOCAB)(
        (add(1), {}), (Reads(bomb(ValueError())), {}), (Reads(lambda logits, _: after.append(1) or logits), {})
    )
    _, outcome = process([request])
    assert after == []
    assert failed(outcome) == {0: (ProcessorFailed, False)}


def test_what_a_failed_request_got_is_not_counted_as_applied(admission: Any) -> None:
    admit = admission(VOCAB)
    add_one = add(1)
    skipped, right = admit((add_one, {}), (Says(bomb(ValueError())), {}), skip=True), admit((add_one, {}))
    _, outcome = process([skipped, right, skipped])
    assert +outcome.applied == Counter(Reads=1)


def half_way(logits: torch.Tensor, _: Any) -> torch.Tensor:
    logits[:, : VOCAB // 2] = float("nan")
    raise ValueError("half-way")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("scattered", [False, True])
def test_skip_leaves_the_rows_bit_identical(admission: Any, place: int, scattered: bool) -> None:
    admit = admission(VOCAB)
    chain = [(add(1), {}), (Says(lambda _, edits: edits.force(1)), {}), (Reads(half_way), {})]
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


def test_one_member_that_skips_and_one_that_aborts(admission: Any) -> None:
    admit = admission(VOCAB)
    broken = Reads(half_way)
    skipping, aborting = admit((broken, {}), skip=True), admit((broken, {}))
    logits, outcome = process([skipping, aborting])
    assert failed(outcome) == {0: (ProcessorFailed, True), 1: (ProcessorFailed, False)}
    assert torch.equal(logits[0], logits_of(2)[0])


# Edits that cannot be


@pytest.mark.parametrize("here", [True, False], ids=["applied here", "sent as edits"])
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda _, edits: edits.deny([1, VOCAB]), InvalidTokenId),
        (lambda _, edits: edits.force(-1), InvalidTokenId),
        (lambda _, edits: edits.allow([2**40]), InvalidTokenId),
        (lambda _, edits: edits.deny(["x"]), InvalidTokenId),
        (lambda _, edits: edits.deny(range(100)), InvalidTokenId),
        (lambda _, edits: edits.bitmask([0, 0]), LogitportError),
        (lambda _, edits: edits.bias([1], [INF]), LogitportError),
        (lambda _, edits: edits.bias([1], [1, 2]), LogitportError),
        (lambda _, edits: edits.nonsense(), ProcessorFailed),
    ],
)
def test_edits_that_cannot_be_cost_their_request_alone(
    admission: Any, act: Callable[..., Any], error: type[LogitportError], here: bool
) -> None:
    admit = admission(VOCAB)
    right, wrong = admit((deny(3), {})), admit((Says(act), {}))
    rows = [Row(0, wrong), Row(1, right)]
    logits = logits_of(2)
    outcome = Outcome()
    run(rows, {}, VOCAB, logits if here else None, outcome)
    if not here:
        apply_edits(pack(VOCAB, outcome), logits)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) == {wrong.slot}
    assert isinstance(outcome.failures[wrong.slot].error, error)
    assert outcome.failures[wrong.slot].error.processor == "Says"
    assert +outcome.applied == Counter(Says=1)


def test_edits_that_cannot_be_are_told_of_their_own_processor(admission: Any) -> None:
    request = admission(VOCAB)((deny(3), {}), (Says(lambda _, edits: edits.deny([99])), {}))
    request.chain[1].dialect.name = "the wrong one"
    rows = [Row(0, request)]
    outcome = Outcome()
    run(rows, {}, VOCAB, None, outcome)
    pack(VOCAB, outcome)
    assert outcome.failures[0].error.processor == "the wrong one"


def test_a_request_that_skips_gets_no_edits_in_any_of_its_rows(admission: Any) -> None:
    admit = admission(VOCAB)

    def wrong_after_a_draft(request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1 if len(request.history) < 2 else 99])

    request = admit((Says(wrong_after_a_draft), {}), prompt=[5], skip=True)
    rows = [Row(0, request), Row(1, request, 1), Row(2, admit((deny(2), {})))]
    outcome = Outcome()
    run(rows, {request: [6]}, VOCAB, None, outcome)
    edits = pack(VOCAB, outcome)
    assert edits.rows.tolist() == [2]
    assert failed(outcome) == {0: (InvalidTokenId, True)}


class Meddles(EditProcessor):
    """Does to the lists that it is handed what a function does."""

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
def test_a_processor_that_meddles_costs_its_own_requests_alone(
    admission: Any, act: Callable[[Any, Any], Any], here: bool
) -> None:
    admit = admission(VOCAB)
    rows = [Row(0, admit((Meddles(act), {}))), Row(1, admit((deny(3), {})))]
    logits = logits_of(2)
    outcome = Outcome()
    run(rows, {}, VOCAB, logits if here else None, outcome)
    if not here:
        apply_edits(pack(VOCAB, outcome), logits)
    assert logits[1].tolist() == [8, 9, 10, -INF, 12, 13, 14, 15]
    assert set(outcome.failures) <= {0}


# Drafts


def test_each_draft_row_sees_the_drafts_before_it(admission: Any) -> None:
    admit = admission(VOCAB)
    seen = []
    look = Reads(lambda logits, params: seen.append([list(row["__req__"].output_ids) for row in params]) or logits)
    tell = Says(lambda request, edits: edits.force(request.history.last_output))
    speculating = admit((look, {}), (tell, {}), prompt=[1], output=[2])
    single = admit((look, {}), (tell, {}), prompt=[7], output=[3])
    rows = [(speculating, 1), single, (speculating, 0), (speculating, 2)]
    logits, outcome = process(rows, drafts={speculating: [4, 5]})
    assert seen == [[[3], [2]], [[2, 4]], [[2, 4, 5]]]
    assert logits.argmax(-1).tolist() == [4, 3, 2, 5]
    assert speculating.history.token_ids.tolist() == [1, 2]
    assert list(speculating.chain[0].state.req.output_ids) == [2]
    assert outcome.failures == {}


def test_drafts_that_a_request_has_no_row_for_are_forgotten(admission: Any) -> None:
    request = admission(VOCAB)((deny(1), {}), prompt=[1])
    process([request], drafts={request: [4, 5]})
    assert request.history.token_ids.tolist() == [1]


class Counts(EditProcessor):
    """Raises once a history holds too many ids, in `advance`."""

    def start(self, request: EditRequest) -> None:
        request.state = len(request.history)

    def advance(self, request: EditRequest, token_id: int) -> None:
        if token_id == request.params.get("bomb"):
            raise ValueError("in advance")
        request.state += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.state == len(request.history)
        edits.deny([request.state])


def test_a_draft_token_that_fails_costs_its_request_alone(admission: Any) -> None:
    admit = admission(VOCAB)
    counts = Counts()
    wrong, right = admit((counts, {"bomb": 6}), skip=True), admit((counts, {}))
    rows = [(wrong, 0), (wrong, 1), (wrong, 2), (right, 0), (right, 1), (right, 2)]
    logits, outcome = process(rows, drafts={wrong: [5, 6], right: [5, 6]})
    assert failed(outcome) == {0: (ProcessorFailed, True)}
    assert torch.equal(logits[:3], logits_of(6)[:3])
    assert (logits == -INF).nonzero().tolist() == [[3, 0], [4, 1], [5, 2]]
    assert len(wrong.history) == len(right.history) == 0


def test_state_that_no_history_gives_back_is_lost_with_a_rejected_draft(admission: Any) -> None:
    def remember(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        for row in params:
            row["calls"] = row.get("calls", 0) + 1
        return logits

    class Remembers(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            return remember(logits, custom_param_list)

    admit = admission(VOCAB)
    request, other = admit((Remembers(), {})), admit((add(1), {}))
    logits, outcome = process([(request, 0), (request, 1), other], drafts={request: [5]})
    assert failed(outcome) == {0: (StateLost, False)}
    assert torch.equal(logits[2], logits_of(3)[2] + 1)


def test_drafts_of_requests_that_have_no_rows_here_are_let_be(admission: Any) -> None:
    """A step runs the rows without and with logits one after the other; each touches its own requests only."""
    admit = admission(VOCAB)
    here, elsewhere = admit((deny(1), {})), admit((add(1), {}))
    elsewhere.chain[0].state.custom_params["kept"] = True
    _, outcome = process([(here, 0), (here, 1)], drafts={here: [5], elsewhere: [6]})
    assert outcome.failures == {}
    assert len(elsewhere.history) == 0
