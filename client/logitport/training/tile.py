"""The chains on a tile of logits: log-probabilities and their gradients, in the memory of the tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from logitport.core.edits import EditKind, Edits
from logitport.errors import LogitportError
from logitport.ops import apply_edits
from logitport.training.program_run import ReadIds, bytes_of_row, run_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.session.handle import ProgramCall
    from logitport.training.chain_steps import Block

# Temporary memory ÷ the tile's: rows that are exponentiated together, and the values of programs.
_PART = 1 / 64
_PROGRAMS_PART = 1 / 16
# In a small tile, the values of programs may take this memory.
_PROGRAM_BYTES = 4 << 20


class SampledIds(NamedTuple):
    """The ids of a rollout on the device of the logits.

    Attributes:
        ids: prompt and output, int64[n].
        prompt_length: number of ids of the prompt.
        temperature: a divisor of the logits after the chain.
        any_of_equal: see `EngineSampling`.
    """

    ids: torch.Tensor
    prompt_length: int
    temperature: float
    any_of_equal: bool


class LogitsTile:
    """The rows of some blocks.

    Args:
        blocks: what the chains do.
        sampled: the ids of each rollout.
        keeps_sampled: whether a program cannot deny the id that was sampled.
    """

    def __init__(self, blocks: Sequence[Block], sampled: Sequence[SampledIds], *, keeps_sampled: bool) -> None:
        self._blocks = blocks
        self._keeps_sampled = keeps_sampled
        self.rows = sum(block.rows for block in blocks)
        # One entry for each row, in the order of the rows.
        self._places: list[tuple[SampledIds, int, Sequence[ProgramCall]]] = []
        for block in blocks:
            for span, programs in zip(block.spans, block.programs, strict=True):
                source = sampled[span.rollout]
                self._places += [(source, position, programs) for position in range(span.begin, span.end)]
        parts = [
            sampled[span.rollout].ids.narrow(0, sampled[span.rollout].prompt_length + span.begin, span.rows)
            for block in blocks
            for span in block.spans
        ]
        self._ids = torch.cat(parts)
        self._sampled = sampled

    def log_probs(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the chains in place, and return the log-probability of each row's id, [rows].

        Also returns for each row whether its id is the only one that is not denied, bool[rows].
        """
        self.process(logits)
        found, alone = [], []
        for begin, end in _parts(self.rows, _PART):
            part, ids = logits[begin:end], self._ids[begin:end]
            result = _log_prob(part, ids)
            found.append(result)
            is_one = result == 0
            if bool(is_one.any()):
                is_one &= (part > -torch.inf).sum(-1) == 1
            alone.append(is_one)
        return torch.cat(found), torch.cat(alone)

    def gradient(self, logits: torch.Tensor, gradient: torch.Tensor) -> None:
        """Overwrite the logits, before the chains, with the gradient of `gradient · log_probs`."""
        begin = 0
        for block in self._blocks:
            end = begin + block.rows
            part, ids, factors = logits[begin:end], self._ids[begin:end], gradient[begin:end]
            if any(block.programs):
                self._gradient_of_programs(block, part, begin, factors)
            else:
                self._apply_plain(block, part)
                for first, last in _parts(block.rows, _PART * self.rows / block.rows):
                    _softmax_gradient(part[first:last], ids[first:last], factors[first:last])
                self._divide(block, part)
            begin = end

    def process(self, logits: torch.Tensor) -> None:
        """Apply the chains in place, without gradients."""
        begin = 0
        for block in self._blocks:
            part = logits[begin : begin + block.rows]
            if any(block.programs):
                for first, last in self._program_parts(block, part.shape[1]):
                    part[first:last] = self._chain(block, begin, first, last).run(part[first:last])
            else:
                self._apply_plain(block, part)
            begin += block.rows

    def _apply_plain(self, block: Block, part: torch.Tensor) -> None:
        _apply(block.edits[0], part)
        self._divide(block, part)

    def _divide(self, block: Block, part: torch.Tensor) -> None:
        begin = 0
        for span in block.spans:
            temperature = self._sampled[span.rollout].temperature
            if temperature != 1:
                part[begin : begin + span.rows] /= temperature
            begin += span.rows

    def _gradient_of_programs(self, block: Block, part: torch.Tensor, begin: int, factors: torch.Tensor) -> None:
        for first, last in self._program_parts(block, part.shape[1]):
            ids = self._ids[begin + first : begin + last]
            chain = self._chain(block, begin, first, last)
            source = part[first:last].detach().requires_grad_()
            with torch.enable_grad():
                result = _log_prob(chain.run(source), ids)
            if result.requires_grad:
                (found,) = torch.autograd.grad(result, source, factors[first:last])
                part[first:last] = found
            else:  # the programs do not read the logits
                part[first:last] = 0

    def _chain(self, block: Block, begin: int, first: int, last: int) -> _Chain:
        rows = slice(begin + first, begin + last)
        edits = [_rows_of(edits, first, last) for edits in block.edits]
        return _Chain(edits, self._places[rows], self._ids[rows], keeps_sampled=self._keeps_sampled)

    def _program_parts(self, block: Block, vocab_size: int) -> Iterator[tuple[int, int]]:
        """Divide the rows of a block so that the values of its programs take a part of the tile's memory."""
        calls = {call.verified.program.digest: call for programs in block.programs for call in programs}
        row_bytes = sum(bytes_of_row(call.verified, vocab_size) for call in calls.values())
        memory = max(_PROGRAM_BYTES, self.rows * vocab_size * 4 * _PROGRAMS_PART)
        return _ranges(block.rows, max(1, int(memory / row_bytes)))


class _Chain:
    """The edits and programs of some rows of a block, as a differentiable function."""

    def __init__(
        self,
        edits: Sequence[Edits],
        rows: Sequence[tuple[SampledIds, int, Sequence[ProgramCall]]],
        ids: torch.Tensor,
        *,
        keeps_sampled: bool,
    ) -> None:
        self._edits = edits
        self._rows = rows
        self._ids = ids[:, None]
        self._keeps_sampled = keeps_sampled

    def run(self, logits: torch.Tensor) -> torch.Tensor:
        """Return processed logits."""
        longest = max(len(programs) for _, _, programs in self._rows)
        for place in range(max(len(self._edits), longest)):
            if place < len(self._edits) and len(self._edits[place]):
                logits = cast("torch.Tensor", _Edited.apply(logits, self._edits[place]))  # type: ignore[no-untyped-call,unused-ignore]
            if place < longest:
                logits = self._with_sampled(place, logits, self._run_programs(place, logits))
        temperatures = [source.temperature for source, _, _ in self._rows]
        if any(temperature != 1 for temperature in temperatures):
            logits = logits / logits.new_tensor(temperatures)[:, None]
        return logits

    def _with_sampled(self, place: int, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return processed logits, with those of before at sampled ids that a program has denied and must not deny."""
        any_of_equal = [source.any_of_equal and place == len(programs) - 1 for source, _, programs in self._rows]
        if not (self._keeps_sampled or any(any_of_equal)):
            return after
        ids = self._ids
        chosen = before.gather(-1, ids)
        denied = after.gather(-1, ids) == -torch.inf
        # An id that was kept in the place of the sampled one.
        equal = (before == chosen) & (after > -torch.inf)
        swapped = denied & equal.any(-1, keepdim=True) & after.new_tensor(any_of_equal, dtype=torch.bool)[:, None]
        other = equal.int().argmax(-1, keepdim=True)
        after = after.scatter(-1, other, torch.where(swapped, -torch.inf, after.gather(-1, other)))
        kept = denied if self._keeps_sampled else swapped
        return after.scatter(-1, ids, torch.where(kept, chosen, after.gather(-1, ids)))

    def _run_programs(self, place: int, logits: torch.Tensor) -> torch.Tensor:
        groups: dict[str, list[int]] = {}
        for row, (_, _, programs) in enumerate(self._rows):
            digest = programs[place].verified.program.digest if place < len(programs) else ""
            groups.setdefault(digest, []).append(row)
        if len(groups) == 1:
            (rows,) = groups.values()
            return self._run_group(place, rows, logits)
        result = torch.empty_like(logits)
        for digest, rows in groups.items():
            index = torch.tensor(rows, device=logits.device)
            chosen = logits.index_select(0, index)
            result = result.index_copy(0, index, self._run_group(place, rows, chosen) if digest else chosen)
        return result

    def _run_group(self, place: int, rows: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        chosen = [self._rows[row] for row in rows]
        verified = chosen[0][2][place].verified
        histories = [
            ReadIds(source.ids, source.prompt_length, source.prompt_length + position) for source, position, _ in chosen
        ]
        try:
            return run_program(verified, logits, [programs[place].values for _, _, programs in chosen], histories)
        except LogitportError as error:
            error.message = f"program {verified.program.name!r}: {error.message}"
            raise


class _Edited(torch.autograd.Function):
    """Logits with edits. A bias passes the gradient; denied ids and forced rows have the gradient 0."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, edits: Edits) -> torch.Tensor:
        result = logits.clone()
        _apply(edits, result)
        forced = edits.rows[edits.kinds == EditKind.FORCE]
        ctx.forced = torch.from_numpy(forced.astype(np.int64)).to(logits.device)
        ctx.save_for_backward(result == -torch.inf)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (denied,) = ctx.saved_tensors
        return gradient.masked_fill(denied, 0).index_fill_(0, ctx.forced, 0), None


def _apply(edits: Edits, logits: torch.Tensor) -> None:
    """Apply edits in place, to float32 or float64."""
    if not len(edits):
        return
    if logits.dtype is torch.float32:
        apply_edits(edits, logits)
        return
    added = torch.zeros_like(logits, dtype=torch.float32)
    apply_edits(edits, added)
    logits += added


def _rows_of(edits: Edits, begin: int, end: int) -> Edits:
    """Return the edits of some rows, which are ascending, with row `begin` as the first one."""
    first, last = np.searchsorted(edits.rows, (begin, end))
    ids = slice(edits.offsets[first], edits.offsets[last])
    return Edits(
        edits.rows[first:last] - np.int32(begin),
        edits.kinds[first:last],
        edits.offsets[first : last + 1] - edits.offsets[first],
        edits.ids[ids],
        edits.values[ids] if edits.values.size else edits.values,
    )


def _log_prob(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    chosen = logits.gather(-1, ids[:, None])[:, 0]
    result = chosen - logits.logsumexp(-1)
    return torch.where(chosen == -torch.inf, -torch.inf, result)


def _softmax_gradient(logits: torch.Tensor, ids: torch.Tensor, factors: torch.Tensor) -> None:
    """Overwrite logits with factor * (1 at the id - softmax)."""
    logits.sub_(logits.logsumexp(-1, keepdim=True)).exp_().mul_(-factors[:, None])
    logits.scatter_add_(-1, ids[:, None], factors[:, None])


def _parts(rows: int, part: float) -> Iterator[tuple[int, int]]:
    return _ranges(rows, max(1, int(rows * part)))


def _ranges(rows: int, size: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + size, rows)) for begin in range(0, rows, size))
