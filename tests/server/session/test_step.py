"""Steps: views and copies of rows, and drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, ProcessorFailed, RowEdits, StateLost
from tests.server.session.actions import INF, VOCAB, LogitsAction, add, deny, failed, logits_of, process

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 2), (3,)])
def test_adjacent_rows_are_passed_as_a_view(admission: Any, rows: tuple[int, ...]) -> None:
    admit = admission(VOCAB)
    seen = []
    look = LogitsAction(lambda logits, _: seen.append((logits.data_ptr(), logits.shape[0])) or logits)
    chosen, other = admit((look, {})), admit()
    logits, _ = process([chosen if row in rows else other for row in range(4)])
    assert seen == [(logits[rows[0]].data_ptr(), len(rows))]


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
    class Remembers(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            for row in custom_param_list:
                row["calls"] = row.get("calls", 0) + 1
            return logits

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
