"""What vLLM's model runner knows of requests and does not tell its processors: names, chunks, preemption."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# From a processor's method up to the runner's: two or three calls, and some to spare.
_HIGHEST = 12


@dataclass(frozen=True)
class RunnerContext:
    """The model runner in whose step a processor is called.

    Attributes:
        runner: `GPUModelRunner` of either generation.
        scheduled: the step's `SchedulerOutput`.
    """

    runner: Any
    scheduled: Any


def calling(shows: str) -> RunnerContext | None:
    """The runner whose method, further up the stack, works on a `scheduler_output`; None outside such.

    Processors are told neither their requests' names, nor which rows belong to a prompt that is still being read, nor
    whether a request that left the batch has ended. The runner's own variables say all that.

    Args:
        shows: an attribute by which the runner is known.
    """
    for frame in _callers():
        if "scheduler_output" in frame.f_code.co_varnames:
            runner, scheduled = frame.f_locals.get("self"), frame.f_locals.get("scheduler_output")
            if scheduled is not None and hasattr(runner, shows):
                return RunnerContext(runner, scheduled)
    return None


def calling_config() -> Any:
    """The `VllmConfig` of the engine's front end, of which a method is further up the stack; None outside such."""
    for frame in _callers():
        if "self" in frame.f_code.co_varnames:
            config = getattr(frame.f_locals.get("self"), "vllm_config", None)
            if config is not None:
                return config
    return None


def _callers() -> Iterator[FrameType]:
    """The frames above the function that asks, the nearest first."""
    frame = sys._getframe(2).f_back
    for _ in range(_HIGHEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
