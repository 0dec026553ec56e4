"""Runs contestants in turn on a device. The forward pass is a kernel that spins, as `benchmarks.cuda` describes."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from benchmarks.gpu.timing import event, synchronize
from benchmarks.measure import ROUNDS
from benchmarks.peers import SGLang

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from benchmarks.measure import Contestant
    from benchmarks.workloads import Workload

_WARM_UP = 5


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
        for place in order if step % 2 else reversed(order):
            contestant = contestants[place]
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
            table[place, step] = host, ready.elapsed_time(processed) / 1e3
    measured = table[:, _WARM_UP:].reshape(len(contestants), ROUNDS, steps, 2)
    return {
        contestant.name: OnDevice(*np.moveaxis(rows, -1, 0))
        for contestant, rows in zip(contestants, measured, strict=True)
    }
