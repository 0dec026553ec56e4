"""Times of work on a GPU, by its own clock, and of the thread that launches it: of calls, and of steps of contestants.

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

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import ROUNDS, Contestant
from benchmarks.peers import SGLang
from benchmarks.workloads import Workload

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

    def gpu(self, call: Callable[[], object]) -> NDArray[np.float64]:
        """Microseconds of the GPU for each of the calls."""
        for _ in range(_WARM_UP):
            call()
        pairs = []
        for _ in range(self._repeats):
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

    def host(self, call: Callable[[], object]) -> NDArray[np.float64]:
        """Microseconds of the calling thread for each of the calls, until the call returns."""
        found = []
        for _ in range(_WARM_UP + self._repeats):
            synchronize(self._device)
            begin = time.perf_counter()
            call()
            found.append((time.perf_counter() - begin) * 1e6)
        synchronize(self._device)
        return np.array(found[_WARM_UP:])


class OnDevice(NamedTuple):
    """Seconds of one contestant, float64[rounds, steps].

    Attributes:
        host: time of the engine's thread.
        stream: on the GPU, from logits that are ready to logits that are processed.
    """

    host: NDArray[np.float64]
    stream: NDArray[np.float64]


class SGLangOnDevice(SGLang):
    """SGLang, whose sampler keeps the rows of a processor on the GPU."""

    def __init__(self, workload: Workload, device: str) -> None:
        super().__init__(workload)
        self._entries = [(processor, rows, indices.to(device)) for processor, rows, indices in self._entries]


class Forward:
    """A forward pass of some milliseconds: a kernel that spins, whatever the GPU's clock; on a CPU, a sleep."""

    def __init__(self, device: str, milliseconds: float) -> None:
        self._device, self._seconds, self._cycles = device, milliseconds / 1e3, 50_000_000
        if device == "cuda":
            self()
            begun, ended = event(device), event(device)
            begun.record()
            self()
            ended.record()
            ended.synchronize()
            self._cycles = int(self._cycles * milliseconds / begun.elapsed_time(ended))

    def __call__(self) -> None:
        if self._device == "cuda":
            torch.cuda._sleep(self._cycles)  # torch has no public function for this
        else:
            time.sleep(self._seconds)


def race(
    contestants: Sequence[Contestant],
    workload: Workload,
    forward: Callable[[], object],
    *,
    steps: int,
    device: str = "cuda",
) -> dict[str, OnDevice]:
    """Run the contestants in turn, in both orders, and measure the times; `steps` for each of ROUNDS rounds."""
    fresh = workload.logits().to(device)
    common = torch.empty_like(fresh)
    ready, processed = event(device), event(device)
    table = np.empty((len(contestants), _WARM_UP + ROUNDS * steps, 2))
    gc.collect()
    for step, token_ids in enumerate(workload.sampled(_WARM_UP + ROUNDS * steps)):
        order = range(len(contestants))
        for index in order if step % 2 else reversed(order):
            contestant = contestants[index]
            logits = common if contestant.logits is None else contestant.logits
            logits.copy_(fresh)
            synchronize(device)
            contestant.begin(token_ids)
            forward()
            ready.record()
            started = time.perf_counter()
            contestant.finish(logits)
            host = time.perf_counter() - started
            processed.record()
            processed.synchronize()
            table[index, step] = host, ready.elapsed_time(processed) / 1e3
    measured = table[:, _WARM_UP:].reshape(len(contestants), ROUNDS, steps, 2)
    return {
        contestant.name: OnDevice(*np.moveaxis(rows, -1, 0))
        for contestant, rows in zip(contestants, measured, strict=True)
    }
