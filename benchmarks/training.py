"""Replays in a trainer: `python -m benchmarks.training`, and `publish` for the table of benchmarks/RESULTS.md.

The time of the chains, computed and applied, is compared with log-softmax of the same tiles. Memory is what torch has
allocated at once during a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks import suite
from benchmarks.measure import over_rounds, ratio
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.workloads import Workload
from logitport.training import ChainReplay, Rollout
from logitport.training.chain_steps import ChainSteps
from logitport.training.tiled_passes import TilePlan
from tests.programs.runtime.memory import peak_bytes

_ROUNDS = 3
# For time, and for memory.
_TIMED, _TIMED_IDS, _TIMED_TILE_ROWS = 64, 4096, 2048
_ROLLOUTS, _IDS, _TILE_ROWS = 12, 256, 512
_HIDDEN = 64
_MAX_TIME, _MAX_MEMORY = 0.15, 1.1


def run() -> Report:
    """Measure time, and memory."""
    return suite.run({"edits": _edits, "memory": _memory})


def _rollouts(count: int, length: int, sampling: dict[str, float] | None = None) -> list[Rollout]:
    """Rollouts with one of the three built-ins of the mix each, and as many ids in the prompt as in the output."""
    workload = Workload(count, 2 * length)
    found = []
    for row, ids in enumerate(workload.histories()):
        kind = workload.kind(row)
        assert kind is not None
        found.append(Rollout(ids[:length], ids[length:], [(kind.ours, kind.params)], sampling=sampling))
    return found


def _edits() -> Iterator[BarLine]:
    """The time of the chains ÷ that of log-softmax, in turns."""
    workload = Workload()
    rollouts, width = _rollouts(_TIMED, _TIMED_IDS), workload.vocab_size
    steps = ChainSteps("", (), "")
    tile_memory = torch.randn(_TIMED_TILE_ROWS, width)
    result = torch.empty_like(tile_memory)
    seconds = []
    for _ in range(_ROUNDS + 1):
        plan = TilePlan(steps, rollouts, width, tile_rows=_TIMED_TILE_ROWS, keep_bytes=0, keeps_sampled=False)
        begun = time.perf_counter()
        for _, tile in plan.passes(tile_memory.device):
            tile.process(tile_memory[: tile.rows])
        middle = time.perf_counter()
        for spans in plan.tiles:
            rows = sum(span.rows for span in spans)
            torch.log_softmax(tile_memory[:rows], -1, out=result[:rows])
        seconds.append((middle - begun, time.perf_counter() - middle))
        tile_memory.normal_()
    chains, softmax = np.array(seconds[1:]).T[:, :, None]
    case = f"{_TIMED} rollouts of {_TIMED_IDS:,} ids, tiles of {_TIMED_TILE_ROWS:,} rows"
    yield BarLine(f"{case}: chains of the mix ÷ log-softmax", ratio(chains, softmax), _MAX_TIME)


def _memory() -> Iterator[BarLine]:
    """The largest memory of a pass ÷ that of a tile."""
    width = Workload().vocab_size
    tiled = ChainReplay(tile_rows=_TILE_ROWS, denied_by_programs="keep")
    weight = torch.randn(width, _HIDDEN).div_(8).requires_grad_()
    hidden = torch.randn(_ROLLOUTS, _IDS, _HIDDEN).requires_grad_()
    tile_bytes = 4.0 * _TILE_ROWS * width
    for name, count, sampling in (("edits", _ROLLOUTS, None), ("edits and min-p", 2, {"min_p": 0.1})):
        rollouts = _rollouts(count, _IDS, sampling)
        states = hidden[: len(rollouts)]
        forward, backward = _passes(tiled, states, weight, rollouts)
        own = weight.nbytes + states.nbytes
        for case, size in (("forward", forward), ("backward, without the gradients themselves", backward - own)):
            yield BarLine(f"memory, {name}, {case} ÷ a tile", over_rounds(np.array([size / tile_bytes])), _MAX_MEMORY)


def _passes(tiled: ChainReplay, states: torch.Tensor, weight: torch.Tensor, rollouts: list[Rollout]) -> tuple[int, int]:
    """The memory of a forward pass, and of a backward pass."""
    tiled.linear(states, weight, rollouts)  # loads what is loaded once
    found: list[torch.Tensor] = []
    forward = peak_bytes(lambda: found.append(tiled.linear(states, weight, rollouts).sum()))
    return forward, peak_bytes(lambda: torch.autograd.grad(found[0], (states, weight)))


if __name__ == "__main__":
    suite.main("training", __doc__, "training", run)
