"""The forward and the backward pass over all tiles, as functions of autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport.training.chain_steps import OutputSpan
from logitport.training.tile import LogitsTile, SampledIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.training.chain_steps import Block, ChainSteps
    from logitport.training.rollout import Rollout

# Rows of a matrix product ÷ those of a tile, if its result needs another dtype.
_PRODUCT_PART = 1 / 16


class TilePlan:
    """The tiles of some rollouts, and what their chains do.

    Args:
        steps: computes what the chains do.
        rollouts: the rollouts.
        vocab_size: width of the logits.
        tile_rows: most rows of a tile.
        keep_bytes: what the chains do is kept for the backward pass if it takes at most this memory.
        keeps_sampled: see `LogitsTile`.

    Attributes:
        tiles: the spans of each tile, in the order of the rollouts.
        vocab_size: as given.
    """

    def __init__(
        self,
        steps: ChainSteps,
        rollouts: Sequence[Rollout],
        vocab_size: int,
        *,
        tile_rows: int,
        keep_bytes: int,
        keeps_sampled: bool,
    ) -> None:
        self._steps = steps
        self._rollouts = rollouts
        self.vocab_size = vocab_size
        self._keep_bytes = keep_bytes
        self._keeps_sampled = keeps_sampled
        self._kept: list[list[Block]] | None = None
        self.tiles = list(_tiles(rollouts, tile_rows))

    def passes(self, device: torch.device, *, keep: bool = False) -> Iterator[tuple[Sequence[OutputSpan], LogitsTile]]:
        """Yield each tile with its spans. With `keep`, a later pass may repeat what this one computes."""
        sampled = [_sampled(rollout, device) for rollout in self._rollouts]
        kept: list[list[Block]] | None = [] if keep else None
        room = self._keep_bytes
        blocks = iter(self._kept) if self._kept is not None else self._blocks()
        for spans, found in zip(self.tiles, blocks, strict=True):
            room -= sum(block.nbytes for block in found)
            if kept is not None:
                kept = [*kept, found] if room >= 0 else None
            yield spans, LogitsTile(found, sampled, keeps_sampled=self._keeps_sampled)
        self._kept = kept or self._kept

    def _blocks(self) -> Iterator[list[Block]]:
        return self._steps.blocks(self._rollouts, self.tiles, self.vocab_size)


class TiledPass(torch.autograd.Function):
    """Log-probabilities of logits [B, T, V], or of the logits source @ weight.T + bias, of which one tile exists."""

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, plan: TilePlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.plan = plan
        ctx.save_for_backward(source, weight, bias)
        found = source.new_zeros(source.shape[:2], dtype=_computed(source))
        alone = torch.zeros_like(found, dtype=torch.bool)
        tile_memory = _TileMemory(plan.vocab_size, source)
        for spans, tile in plan.passes(source.device, keep=any(ctx.needs_input_grad[:3])):
            part = tile_memory.rows(tile.rows)
            _write_logits(spans, source, weight, bias, part)
            log_probs, are_alone = tile.log_probs(part)
            _spread(spans, log_probs, found)
            _spread(spans, are_alone, alone)
        ctx.mark_non_differentiable(alone)
        return found, alone

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
        source, weight, bias = ctx.saved_tensors
        of_source, of_weight, of_bias = (
            torch.zeros_like(each) if needed else None
            for each, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
        )
        tile_memory = _TileMemory(ctx.plan.vocab_size, source)
        for spans, tile in ctx.plan.passes(source.device):
            part = tile_memory.rows(tile.rows)
            _write_logits(spans, source, weight, bias, part)
            tile.gradient(part, _take(spans, gradient).to(part.dtype))
            if of_bias is not None:
                of_bias += part.sum(0).to(of_bias.dtype)
            if weight is not None:
                part = _narrowed(part, source.dtype)
            if of_weight is not None:
                of_weight.addmm_(part.T, _take(spans, source))
            if of_source is not None:
                _spread(spans, part if weight is None else part @ weight, of_source)
        return of_source, of_weight, of_bias, None


class _TileMemory:
    """Memory for one tile at a time, float32, or float64 if the logits are."""

    def __init__(self, vocab_size: int, like: torch.Tensor) -> None:
        self._vocab_size = vocab_size
        self._like = like
        self._memory: torch.Tensor | None = None

    def rows(self, rows: int) -> torch.Tensor:
        if self._memory is None or len(self._memory) < rows:
            self._memory = None  # before the other one is allocated
            self._memory = self._like.new_empty((rows, self._vocab_size), dtype=_computed(self._like))
        return self._memory[:rows]


def _computed(logits: torch.Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype is torch.float64 else torch.float32


def _tiles(rollouts: Sequence[Rollout], tile_rows: int) -> Iterator[list[OutputSpan]]:
    tile: list[OutputSpan] = []
    room = tile_rows
    for index, rollout in enumerate(rollouts):
        begin = 0
        while begin < len(rollout):
            end = min(len(rollout), begin + room)
            tile.append(OutputSpan(index, begin, end))
            room -= end - begin
            begin = end
            if not room:
                yield tile
                tile, room = [], tile_rows
    if tile:
        yield tile


def _sampled(rollout: Rollout, device: torch.device) -> SampledIds:
    ids = np.concatenate((rollout.prompt_token_ids, rollout.output_token_ids)).astype(np.int64)
    prompt_length = len(rollout.prompt_token_ids)
    return SampledIds(torch.from_numpy(ids).to(device), prompt_length, rollout.temperature, rollout.any_of_equal)


def _take(spans: Sequence[OutputSpan], source: torch.Tensor) -> torch.Tensor:
    """Return the rows of the spans, one after the other."""
    return torch.cat([source[span.rollout, span.begin : span.end] for span in spans])


def _write_logits(
    spans: Sequence[OutputSpan],
    source: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write the rows of the spans to `out`, one after the other."""
    if weight is not None:
        _product(_take(spans, source), weight, bias, out)
        return
    begin = 0
    for span in spans:
        out[begin : begin + span.rows] = source[span.rollout, span.begin : span.end]
        begin += span.rows


def _spread(spans: Sequence[OutputSpan], rows: torch.Tensor, target: torch.Tensor) -> None:
    """Write rows, one after the other, to the places of the spans."""
    begin = 0
    for span in spans:
        target[span.rollout, span.begin : span.end] = rows[begin : begin + span.rows]
        begin += span.rows


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """Write states @ weight.T + bias to `out`, computed in the dtype of the states as a model's last layer does."""
    if out.dtype is states.dtype and bias is None:
        torch.mm(states, weight.T, out=out)
        return
    size = max(1, int(len(states) * _PRODUCT_PART))
    for begin in range(0, len(states), size):
        out[begin : begin + size] = torch.nn.functional.linear(states[begin : begin + size], weight, bias)


def _narrowed(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tile's gradient in a dtype of at most its size, in the same memory."""
    if gradient.dtype is dtype:
        return gradient
    result = gradient.view(dtype)[:, : gradient.shape[1]]
    size = max(1, int(len(gradient) * _PRODUCT_PART))
    for begin in range(0, len(gradient), size):
        result[begin : begin + size] = gradient[begin : begin + size].to(dtype)
    return result
