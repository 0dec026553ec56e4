"""Times of work on a GPU, by its own clock, and of the thread that launches it.

GPU time is the time between two CUDA events around a call, with three precautions:

- A buffer larger than the second-level cache is overwritten before each call, as in `triton.testing.do_bench`.
  Otherwise repeated calls find the logits in the cache.
- A kernel that spins for longer than the call needs on the host is launched before the first event. All work of the
  call is then queued before the GPU begins it, and gaps between launches are not counted.
- The first calls are not counted: they compile kernels and allocate memory.

Host time is the time of the calling thread, with nothing queued on the GPU before the call.

On a CPU, where there is one clock, the same functions measure the time of the call, so that jobs can be tried.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_FLUSH_BYTES = 256 << 20  # an H200 has a second-level cache of 60 MB
_SPIN_CYCLES = 10_000_000  # 5 ms at 2 GHz
_WARM_UP = 5


class HostEvent:
    """A time of the host, with the methods of `torch.cuda.Event` that are used here."""

    def record(self) -> None:
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: the host's work has ended when it is recorded."""

    def elapsed_time(self, later: HostEvent) -> float:
        """Milliseconds until a later event."""
        return (later._seconds - self._seconds) * 1e3


def event(device: str) -> Any:
    """Create an event that records a time: of the GPU's stream, or of the host."""
    return torch.cuda.Event(enable_timing=True) if device == "cuda" else HostEvent()


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


class Stopwatch:
    """Measures calls on a device.

    Args:
        device: "cuda" or "cpu".
        repeats: how often a call is measured.
    """

    def __init__(self, device: str, repeats: int = 100) -> None:
        self._device, self._repeats = device, repeats
        self._flushed = torch.empty(_FLUSH_BYTES if device == "cuda" else 0, dtype=torch.uint8, device=device)

    def gpu(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> NDArray[np.float64]:
        """Microseconds of the GPU for each of the calls; `before` runs before each, and is not timed."""
        for _ in range(_WARM_UP):
            before()
            call()
        pairs = []
        for _ in range(self._repeats):
            before()
            begin, end = event(self._device), event(self._device)
            if self._device == "cuda":
                self._flushed.zero_()
                torch.cuda._sleep(_SPIN_CYCLES)  # torch has no public function for this
            begin.record()
            call()
            end.record()
            synchronize(self._device)  # bounds the queue, and the memory of the calls
            pairs.append((begin, end))
        return np.array([begin.elapsed_time(end) for begin, end in pairs]) * 1e3

    def host(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> NDArray[np.float64]:
        """Microseconds of the calling thread for each of the calls, until the call returns."""
        found = []
        for _ in range(_WARM_UP + self._repeats):
            before()
            synchronize(self._device)
            begin = time.perf_counter()
            call()
            found.append((time.perf_counter() - begin) * 1e6)
        synchronize(self._device)
        return np.array(found[_WARM_UP:])
