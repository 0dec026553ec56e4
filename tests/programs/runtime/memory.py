"""The memory of a runner, the plan of a run, and what torch allocates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from logitport_programs.runtime.run_plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def peak_bytes(run: Any) -> int:
    """The most that was allocated at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak
