"""Replays on given logits: values, gradients, tiles, refusals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, InvalidArgument, RowEdits
from logitport.training import ChainReplay, Rollout, replay, tile
from logitport.training import log_probs as module
from tests.programs.runtime.memory import peak_bytes

if TYPE_CHECKING:
    from logitport.processors import EditRequest

WIDTH = 40
EDITS: list[tuple[Any, dict[str, Any]]] = [
    ("disallowed_tokens", {"token_ids": [33, 34]}),
    ("logit_bias", {"logit_bias": {"5": 2.0, "6": -1.0}}),
    ("presence_penalty", {"presence_penalty": 0.5}),
]
PROGRAMS: list[tuple[Any, dict[str, Any]]] = [
    ("repetition_penalty", {"repetition_penalty": 1.2}),
    *EDITS,
    ("min_p", {"min_p": 0.001}),
]
CLOSED = [("thinking_budget", {"thinking_budget": 2, "thinking_start_ids": [1], "thinking_end_ids": [8, 9]})]


def logits_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def outputs(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(4)
    return [random.integers(0, 30, length).tolist() for length in lengths]


def naive(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
    """The log-probabilities after EDITS, by autograd."""
    found = []
    for position, token_id in enumerate(output):
        added = torch.zeros(WIDTH, dtype=logits.dtype)
        added[5] += 2
        added[6] -= 1
        added[list(set(output[:position]))] -= 0.5
        added[[33, 34]] = -torch.inf
        found.append((logits[position] + added).log_softmax(-1)[token_id])
    return torch.stack(found)


def test_edits_have_the_values_and_gradients_of_autograd() -> None:
    ids = outputs(12, 7)
    logits = logits_of(2, 12, WIDTH).requires_grad_()
    found = replay(logits, [Rollout([1, 2], each, EDITS) for each in ids])
    factors = logits_of(2, 12, 1)[..., 0]
    (gradient,) = torch.autograd.grad(found, logits, factors)
    plain = logits.detach().clone().requires_grad_()
    wanted = [naive(plain[row], [1, 2], each) for row, each in enumerate(ids)]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, :7], wanted[1])
    assert (found[1, 7:] == 0).all()
    total = (wanted[0] * factors[0]).sum() + (wanted[1] * factors[1, :7]).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(total, plain)[0], atol=1e-6, rtol=1e-4)
    assert (gradient[:, :, [33, 34]] == 0).all()
    assert (gradient[1, 7:] == 0).all()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6}, {"temperature": 0.6, "top_p": 0.999}])
@pytest.mark.parametrize("chain", [EDITS, PROGRAMS], ids=["edits", "programs"])
def test_gradcheck(chain: Any, sampling: dict[str, float]) -> None:
    keeping = ChainReplay(denied_by_programs="keep")
    rollouts = [Rollout([1], each, chain, sampling=sampling) for each in outputs(3, 2)]
    logits = logits_of(2, 3, WIDTH, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda source: keeping(source, rollouts), (logits,))


@pytest.mark.parametrize("tile_rows", [1, 5, 2048])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("chain", [EDITS, PROGRAMS], ids=["edits", "programs"])
def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch, chain: Any, keeps: bool, tile_rows: int) -> None:
    if not keeps:
        monkeypatch.setattr(module, "_KEEP_BYTES", 0)
    logits = logits_of(3, 9, WIDTH).requires_grad_()
    rollouts = [Rollout([1, 2], each, chain) for each in outputs(9, 0, 8)]
    whole, tiled = replay(logits, rollouts), ChainReplay(tile_rows=tile_rows)(logits, rollouts)
    torch.testing.assert_close(tiled, whole)
    assert (whole[1] == 0).all()
    gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (whole, tiled)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("chain", [EDITS, PROGRAMS], ids=["edits", "programs"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_equals_the_replay_of_its_logits(chain: Any, with_bias: bool) -> None:
    tiled = ChainReplay(tile_rows=5)
    hidden, weight = (logits_of(2, 9, 16) / 8).requires_grad_(), logits_of(WIDTH, 16).requires_grad_()
    bias = logits_of(WIDTH).requires_grad_() if with_bias else None
    rollouts = [Rollout([1, 2], each, chain) for each in outputs(9, 8)]
    inputs = [each for each in (hidden, weight, bias) if each is not None]
    wanted = replay(torch.nn.functional.linear(hidden, weight, bias), rollouts)
    found = tiled.linear(hidden, weight, rollouts, bias=bias)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_linear_passes_gradcheck() -> None:
    hidden, weight = (logits_of(*shape, dtype=torch.float64).requires_grad_() for shape in ((1, 3, 4), (WIDTH, 4)))
    rollouts = [Rollout([1], outputs(3)[0], PROGRAMS)]
    assert torch.autograd.gradcheck(lambda *inputs: replay.linear(*inputs, rollouts), (hidden, weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_logits_are_computed_in_float32(dtype: torch.dtype) -> None:
    rollouts = [Rollout([1, 2], each, EDITS) for each in outputs(9, 8)]
    logits = logits_of(2, 9, WIDTH, dtype=dtype).requires_grad_()
    found = replay(logits, rollouts)
    assert torch.equal(found, replay(logits.detach().float(), rollouts))
    assert torch.autograd.grad(found.sum(), logits)[0].dtype is dtype
    hidden, weight = (
        logits_of(2, 9, 16, dtype=dtype).requires_grad_(),
        logits_of(WIDTH, 16, dtype=dtype).requires_grad_(),
    )
    found = ChainReplay(tile_rows=6).linear(hidden, weight, rollouts)
    gradients = torch.autograd.grad(found.sum(), (hidden, weight))
    wide = [each.detach().float().requires_grad_() for each in (hidden, weight)]
    wanted = torch.autograd.grad(replay.linear(*wide, rollouts).sum(), wide)
    for one, other in zip(gradients, wanted, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one.float(), other, atol=0.1, rtol=0.05)


def test_forced_ids_have_no_gradient() -> None:
    rollout = Rollout([1], [4, 5, 8, 9, 7], CLOSED)
    logits = logits_of(1, 5, WIDTH).requires_grad_()
    assert rollout.forced is None
    found = replay(logits, [rollout])
    assert rollout.forced is not None
    assert rollout.forced.tolist() == [False, False, True, True, False]
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert (found[0, 2:4] == 0).all()
    assert (gradient[0, 2:4] == 0).all()
    assert (gradient[0, 4] != 0).any()


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"top_k": 1}])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_a_rollout_without_a_choice_is_refused(engine: Any, sampling: dict[str, float]) -> None:
    logits = logits_of(1, 3, WIDTH)
    best = Rollout([1], logits[0].argmax(-1), sampling=sampling, engine=engine)
    with pytest.raises(InvalidArgument, match="rollout 0: its chain forces each of its 3 ids"):
        replay(logits, [best])


def test_a_denied_id_names_its_position() -> None:
    rollouts = [Rollout([1], [2, 3]), Rollout([1], [2, 33, 4], EDITS)]
    with pytest.raises(InvalidArgument, match="rollout 1, position 1 of the output: the id 33 was sampled"):
        replay(logits_of(2, 3, WIDTH), rollouts)
    with pytest.raises(InvalidArgument, match="rollout 1, position 1"):
        ChainReplay(denied_by_programs="keep")(logits_of(2, 3, WIDTH), rollouts)


def test_programs_may_keep_the_sampled_id() -> None:
    logits = torch.tensor([[[3.0, 2.0, 1.0, 0.0]]], requires_grad=True)
    rollout = Rollout([0], [2], sampling={"temperature": 0.5, "top_k": 2})
    with pytest.raises(InvalidArgument, match=r"position 0 .*denied_by_programs='keep'"):
        replay(logits, [rollout])
    found = ChainReplay(denied_by_programs="keep")(logits, [rollout])
    assert found.item() == pytest.approx(2 - math.log(math.exp(6) + math.exp(4) + math.exp(2)))
    (gradient,) = torch.autograd.grad(found, logits)
    assert gradient[0, 0, 3] == 0
    assert gradient[0, 0, 2] > 0


class ReadsLogits(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class Shipped(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([(ReadsLogits, {})], r"rollout 1: its chain has a class, which is code; .*`logitport_programs.lift`"),
        ([(Shipped, {})], r"rollout 1: its chain has a class, which is code; .*`logitport_programs.lift`"),
        ([("0" * 64, {})], "rollout 1: no processor is called '0000"),
        ([("team/other", {})], "rollout 1: no processor is called 'team/other'"),
        ([("min_p", {"min_p": 2})], "rollout 1: .*min_p"),
    ],
)
def test_chains_that_cannot_be_replayed(chain: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replay(logits_of(2, 3, WIDTH), [Rollout([1], [2, 3]), Rollout([1], [2, 3], chain)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda logits: replay(logits[0], []), "logits is float32.*three dimensions"),
        (lambda logits: replay(logits.long(), []), "of floats"),
        (lambda logits: replay(logits, []), "1 sequences, for 0 rollouts"),
        (lambda logits: replay(logits, [Rollout([1], [2] * 4)]), "rollout 0 has 4 ids, and logits 3 rows"),
        (lambda logits: replay.linear(logits, logits[0, :, :3], [Rollout([1], [2])]), "weight is float32"),
        (lambda _: Rollout([1], [2], sampling={"beams": 2}), "sampling has 'beams'"),
        (lambda _: Rollout([1], [2], sampling={"top_k": "2"}), r"sampling\['top_k'\] is '2'"),  # type: ignore[dict-item]
        (lambda _: Rollout([1], [2], engine="mlx"), "engine is 'mlx'"),  # type: ignore[arg-type]
        (lambda _: Rollout([1.5], [2]), "prompt_token_ids must be integers"),  # type: ignore[list-item]
        (lambda _: Rollout([1], [2], [("min_p",)]), "must be .* pairs"),  # type: ignore[list-item]
        (lambda _: ChainReplay(tile_rows=0), "tile_rows"),
        (lambda _: ChainReplay(denied_by_programs="ignore"), "denied_by_programs is 'ignore'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call(logits_of(1, 3, WIDTH))


def test_programs_that_are_slow_in_a_step_of_an_engine_run() -> None:
    """A session would leave so many rows of a sort to the server, which then reads the logits."""
    logits = logits_of(1, 1, 80_000)
    found = replay(logits, [Rollout([1], logits[0].argmax(-1), sampling={"top_p": 0.999})])
    assert -20 < found.item() < 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.5}, {"min_p": 0.001}], ids=["edits", "programs"])
@pytest.mark.parametrize("linear", [False, True])
def test_a_pass_takes_the_memory_of_one_tile(monkeypatch: pytest.MonkeyPatch, linear: bool, sampling: Any) -> None:
    monkeypatch.setattr(tile, "_PROGRAM_BYTES", 0)
    width, rows = 3000, 1024
    tile_bytes = 4 * width * rows
    tiled = ChainReplay(tile_rows=rows, denied_by_programs="keep")
    banned = [("disallowed_tokens", {"token_ids": [width - 1]})]
    rollouts = [Rollout([1, 2], each, banned, sampling=sampling) for each in outputs(*[rows // 2] * 3)]
    source = logits_of(3, rows // 2, 8 if linear else width).requires_grad_()
    weight = logits_of(width, 8).requires_grad_()
    inputs = (source, weight) if linear else (source,)
    found: list[torch.Tensor] = []

    def forward() -> None:
        found.append((tiled.linear(source, weight, rollouts) if linear else tiled(source, rollouts)).sum())

    assert peak_bytes(forward) <= 1.1 * tile_bytes
    own = sum(each.nbytes for each in inputs)
    assert peak_bytes(lambda: torch.autograd.grad(found[0], inputs)) - own <= 1.1 * tile_bytes
