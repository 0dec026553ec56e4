"""Steps: order of chains, views and copies of rows, and drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    LogitportError,
    ProcessorFailed,
    RowEdits,
    StateLost,
)
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


# Chains


def test_a_chain_runs_in_order(admission: Any) -> None:
    admit = admission(VOCAB)
    add_one, double = add(1), LogitsAction(lambda logits, _: logits * 2)
    first, second, none = admit((add_one, {}), (double, {})), admit((double, {}), (add_one, {})), admit()
    logits, outcome = process([first, second, none])
    assert torch.equal(logits[0], (logits_of(3)[0] + 1) * 2)
    assert torch.equal(logits[1], logits_of(3)[1] * 2 + 1)
    assert torch.equal(logits[2], logits_of(3)[2])
    assert outcome.applied == {"LogitsAction": 4}


def test_edits_and_logits_are_processed_in_chain_order(admission: Any) -> None:
    """A processor that reads logits sees earlier edits. Later edits apply to its result."""
    seen = []
    look = LogitsAction(lambda logits, _: seen.append(logits.clone()) or logits.fill_(3))
    force = EditsAction(lambda request, edits: edits.force(request.params["id"]))
    logits, outcome = process([admission(VOCAB)((deny(1), {}), (look, {}), (force, {"id": 5}))])
    assert seen[0][0].tolist() == [0, -INF, 2, 3, 4, 5, 6, 7]
    assert logits.tolist() == [[*[-INF] * 5, 0, *[-INF] * 2]]
    assert outcome.applied == {"EditsAction": 2, "LogitsAction": 1}


def test_parameters_are_passed_with_their_rows(admission: Any) -> None:
    admit = admission(VOCAB)

    def multiply(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        return logits * torch.tensor([row["by"] for row in params])[:, None]

    by = LogitsAction(multiply)
    requests = [admit((by, {"by": 2.0})), admit(), admit((by, {"by": 3.0})), admit((by, {"by": 5.0}))]
    logits, _ = process(requests)
    assert torch.equal(logits, logits_of(4) * torch.tensor([[2.0], [1.0], [3.0], [5.0]]))


def test_rows_of_one_request_share_its_parameters_and_its_state(admission: Any) -> None:
    """The same dict is passed once for each row, as with SGLang's num_tokens_in_batch."""
    given: list[list[dict[str, Any]]] = []
    request = admission(VOCAB)(
        (LogitsAction(lambda logits, params: given.append(params) or logits), {"a": 1}), prompt=[4]
    )
    process([request, request])
    assert given[0][0] is given[0][1]
    assert given[0][0]["a"] == 1
    assert list(given[0][0]["__req__"].origin_input_ids) == [4]


# Views and copies


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 2), (3,)])
def test_adjacent_rows_are_passed_as_a_view(admission: Any, rows: tuple[int, ...]) -> None:
    admit = admission(VOCAB)
    seen = []
    look = LogitsAction(lambda logits, _: seen.append((logits.data_ptr(), logits.shape[0])) or logits)
    chosen, other = admit((look, {})), admit()
    logits, _ = process([chosen if row in rows else other for row in range(4)])
    assert seen == [(logits[rows[0]].data_ptr(), len(rows))]


@pytest.mark.parametrize("rows", [(0, 2), (0, 1, 3)])
@pytest.mark.parametrize("in_place", [True, False])
def test_scattered_rows_are_gathered_and_put_back(admission: Any, rows: tuple[int, ...], in_place: bool) -> None:
    admit = admission(VOCAB)
    act = LogitsAction(lambda logits, _: logits.mul_(-1) if in_place else -logits)
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
    chosen = admit((LogitsAction(lambda logits, _: (logits * 2).to(returned)), {}))
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
def test_unusual_results_are_accepted(admission: Any, act: Callable[..., Any], scattered: bool) -> None:
    admit = admission(VOCAB)
    chosen = admit((LogitsAction(act), {}))
    logits, outcome = process([chosen, admit() if scattered else chosen, chosen])
    assert outcome.failures == {}
    assert torch.equal(logits[[0, 2]], logits_of(3)[[0, 2]] + 1)
    assert not logits.requires_grad


# Drafts


def test_each_draft_row_sees_the_drafts_before_it(admission: Any) -> None:
    admit = admission(VOCAB)
    seen = []
    look = LogitsAction(
        lambda logits, params: seen.append([list(row["__req__"].output_ids) for row in params]) or logits
    )
    force = EditsAction(lambda request, edits: edits.force(request.history.last_output))
    speculating = admit((look, {}), (force, {}), prompt=[1], output=[2])
    single = admit((look, {}), (force, {}), prompt=[7], output=[3])
    rows = [(speculating, 1), single, (speculating, 0), (speculating, 2)]
    logits, outcome = process(rows, drafts={speculating: [4, 5]})
    assert seen == [[[3], [2]], [[2, 4]], [[2, 4, 5]]]
    assert logits.argmax(-1).tolist() == [4, 3, 2, 5]
    assert speculating.history.token_ids.tolist() == [1, 2]
    assert list(speculating.chain[0].state.req.output_ids) == [2]
    assert outcome.failures == {}


def test_drafts_without_rows_are_ignored(admission: Any) -> None:
    request = admission(VOCAB)((deny(1), {}), prompt=[1])
    process([request], drafts={request: [4, 5]})
    assert request.history.token_ids.tolist() == [1]


class Counts(EditProcessor):
    """Raises in `advance` for the id `bomb`; denies the id that equals the length of the history."""

    def start(self, request: EditRequest) -> None:
        request.state = len(request.history)

    def advance(self, request: EditRequest, token_id: int) -> None:
        if token_id == request.params.get("bomb"):
            raise ValueError("in advance")
        request.state += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.state == len(request.history)
        edits.deny([request.state])


def test_a_draft_token_that_fails_affects_only_its_request(admission: Any) -> None:
    admit = admission(VOCAB)
    counts = Counts()
    wrong, right = admit((counts, {"bomb": 6}), skip=True), admit((counts, {}))
    rows = [(wrong, 0), (wrong, 1), (wrong, 2), (right, 0), (right, 1), (right, 2)]
    logits, outcome = process(rows, drafts={wrong: [5, 6], right: [5, 6]})
    assert failed(outcome) == {0: (ProcessorFailed, True)}
    assert torch.equal(logits[:3], logits_of(6)[:3])
    assert (logits == -INF).nonzero().tolist() == [[3, 0], [4, 1], [5, 2]]
    assert len(wrong.history) == len(right.history) == 0


def test_state_that_cannot_be_rebuilt_is_lost_by_a_rejected_draft(admission: Any) -> None:
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


def test_drafts_of_requests_without_rows_are_ignored(admission: Any) -> None:
    """A step runs its rows without logits, then those with logits. Each run changes only its own requests."""
    admit = admission(VOCAB)
    here, elsewhere = admit((deny(1), {})), admit((add(1), {}))
    elsewhere.chain[0].state.custom_params["kept"] = True
    _, outcome = process([(here, 0), (here, 1)], drafts={here: [5], elsewhere: [6]})
    assert outcome.failures == {}
    assert len(elsewhere.history) == 0
