"""Reads from vLLM's model runner what it does not pass to processors: request names, prompt chunks and preemption."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# The runner's method is two or three calls above a processor's; the rest is a margin.
_MAX_FRAMES = 12


@dataclass(frozen=True)
class RunnerContext:
    """The model runner that called the processor.

    Attributes:
        runner: `GPUModelRunner` of either generation.
        scheduled: the step's `SchedulerOutput`.
    """

    runner: Any
    scheduled: Any


def find_runner(attribute: str) -> RunnerContext | None:
    """Find the runner in the nearest calling method with a `scheduler_output`; None without one.

    vLLM does not pass processors the names of requests, the rows of unfinished prompts, or whether a request that left
    the batch has ended. The runner's own variables hold all of these.

    Args:
        attribute: an attribute that identifies the runner.
    """
    for frame in _callers():
        if "scheduler_output" in frame.f_code.co_varnames:
            runner, scheduled = frame.f_locals.get("self"), frame.f_locals.get("scheduler_output")
            if scheduled is not None and hasattr(runner, attribute):
                return RunnerContext(runner, scheduled)
    return None


def find_config() -> Any:
    """Find the `VllmConfig` of the engine's front end in the nearest calling method that has one; None without one."""
    for frame in _callers():
        if "self" in frame.f_code.co_varnames:
            config = getattr(frame.f_locals.get("self"), "vllm_config", None)
            if config is not None:
                return config
    return None


def _callers() -> Iterator[FrameType]:
    """Yield the frames above the calling function, nearest first."""
    frame = sys._getframe(2).f_back
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
