"""Programs of samplers, against the same code in eager torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.core.history import History
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.runner import Runner
from tests.programs.runtime import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_programs.verifier import Verified

ROWS, WIDTH, WINDOW = 8, 100, 12
HISTORIES = [RequestTokens(History(range(row), [7, 7, 99])) for row in range(ROWS)]


def min_p(x: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    probabilities = torch.softmax(x, -1)
    least = probabilities.amax(-1, keepdim=True) * torch.tensor(p["min_p"]).to(x.dtype)
    return x.masked_fill(probabilities < least, -math.inf)


def top_k(x: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    kept = x.sort(dim=-1, descending=True, stable=True).indices[:, : build.K]
    return torch.full_like(x, -math.inf).scatter(1, kept, x.gather(1, kept))


def top_p(x: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    ordered, order = x.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered.float(), -1)
    before = probabilities.cumsum(-1) - probabilities
    return x.scatter(1, order, ordered.masked_fill(before > p["top_p"], -math.inf))


def entropy_gate(x: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    log_p = torch.log_softmax(x.float(), -1)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    return torch.where(entropy > p["threshold"], x / torch.tensor(p["temperature"]).to(x.dtype), x)


def repetition(x: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    x, penalty = x.clone(), torch.tensor(p["penalty"]).to(x.dtype)
    for row, tokens in enumerate(HISTORIES):
        ids = torch.from_numpy(tokens.history.token_ids[-WINDOW:].astype("int64")).unique()
        score = x[row, ids]
        x[row, ids] = torch.where(score > 0, score / penalty, score * penalty)
    return x


PROGRAMS: dict[str, tuple[Verified, dict[str, float], Callable[..., torch.Tensor]]] = {
    "temperature": (build.temperature(), {"temperature": 1.3}, lambda x, p: x / torch.tensor(1.3).to(x.dtype)),
    "min_p": (build.min_p(), {"min_p": 0.2}, min_p),
    "top_k": (build.top_k(), {}, top_k),
    "top_p": (build.top_p(), {"top_p": 0.6}, top_p),
    "entropy gate": (build.entropy_gate(), {"threshold": 2.5, "temperature": 3.0}, entropy_gate),
    "repetition penalty": (build.repetition_penalty(WINDOW), {"penalty": 1.7}, repetition),
}
SELECTIONS: dict[str, Any] = {"all": slice(None), "even": slice(0, None, 2), "irregular": [1, 2, 6]}


def logits_of(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)) * 2).to(dtype)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_result_is_that_of_eager_code(name: str, dtype: torch.dtype, selection: str) -> None:
    verified, params, eager = PROGRAMS[name]
    before = logits_of(dtype)
    rows = list(range(ROWS))[SELECTIONS[selection]] if selection != "irregular" else SELECTIONS[selection]
    expected, logits = before.clone(), before.clone()
    expected[rows] = eager(before, params)[rows]
    failed = Runner().apply(
        verified, logits, SELECTIONS[selection], [params] * len(rows), [HISTORIES[row] for row in rows]
    )
    assert not failed
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)
    assert not torch.equal(logits, before)


def test_rows_have_parameters_of_their_own() -> None:
    logits = torch.ones(3, 5)
    Runner().apply(build.temperature(), logits, slice(None), [{"temperature": 2}, {}, {"temperature": 0.5}])
    assert logits[:, 0].tolist() == [0.5, 1.0, 2.0]


def test_infinite_logits_stay_infinite() -> None:
    logits = torch.tensor([[1.0, -math.inf, 3.0]])
    assert not Runner().apply(build.min_p(), logits, slice(None), [{"min_p": 0.5}])
    assert logits.tolist() == [[-math.inf, -math.inf, 3.0]]


def test_logits_of_inference_mode() -> None:
    runner = Runner()
    with torch.inference_mode():
        logits = torch.ones(2, 5)
        runner.apply(build.temperature(), logits, slice(None), [{"temperature": 2.0}] * 2)
        assert logits[0, 0] == 0.5
    logits = torch.ones(2, 5)
    runner.apply(build.temperature(), logits, slice(None), [{"temperature": 2.0}] * 2)
    assert logits[0, 0] == 0.5


def test_a_square_root_is_correctly_rounded() -> None:
    write = build.Writer()
    write("sqrt", write("logits"))
    logits = torch.tensor([[0.05, 2.0, 0.0]])
    assert not Runner().apply(write.verified(), logits, slice(None))
    assert torch.equal(logits, torch.tensor([[0.05, 2.0, 0.0]]).double().sqrt().float())
