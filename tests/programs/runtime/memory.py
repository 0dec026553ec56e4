"""The memory of a runner, and the plan of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_programs.runtime.run_plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_programs.runtime.program_runner import Runner
    from logitport_programs.runtime.run_plan import Plan
    from logitport_programs.verifier import Verified


def held_bytes(runner: Runner) -> int:
    """Memory that is held for the next run, without constants."""
    return sum(arena.bytes for arena in runner._arenas.values())


def plan_of(runner: Runner, verified: Verified, rows: Sequence[int], logits: torch.Tensor) -> Plan:
    """The plan of `apply` for these rows, or for the longest part of them that runs at once."""
    longest, copied = 1, False
    for part in runner._parts(verified, rows, logits):
        longest, copied = max(longest, part.end - part.begin), part.span is None
    return make_plan(verified, longest, logits.shape[1], logits.dtype, copied=copied, max_bytes=runner._max_bytes)
