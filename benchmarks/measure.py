"""Measures contestants alternately, step by step, in one process; medians, spread, ratios."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.workloads import Workload

ROUNDS = 5
# Of a round's steps: on a machine with other processes, it is nearer to the time without them than the median is.
LOWER_QUARTILE = 0.25
_WARM_UP = 5
NO_LOGITS = torch.empty(0)


class Contestant(ABC):
    """One way to have a batch's logits processed.

    Attributes:
        name: name in the tables.
        logits: the contestant's own buffer into which the model writes logits, if it needs one.
    """

    name: str
    logits: torch.Tensor | None = None

    def begin(self, token_ids: Sequence[int]) -> None:
        """Pass the sampled ids, one per row, before the forward pass."""

    @abstractmethod
    def finish(self, logits: torch.Tensor) -> None:
        """Process the logits in place, after the forward pass."""

    def step(self, token_ids: Sequence[int]) -> None:
        """Run `begin` and `finish` without logits."""
        self.begin(token_ids)
        self.finish(NO_LOGITS)

    def close(self) -> None:
        """Release its resources."""


class Ratio(NamedTuple):
    """A quotient of medians or quartiles, round by round: the median of the rounds, the lowest and the highest."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Samples:
    """Seconds of one contestant, float64[rounds, steps].

    Attributes:
        begin: passing the sampled ids, before the forward pass.
        forward: the forward pass, slowed down by concurrent work.
        exposed: from logits that are ready to logits that are processed.
    """

    begin: NDArray[np.float64]
    forward: NDArray[np.float64]
    exposed: NDArray[np.float64]

    @property
    def blocking(self) -> NDArray[np.float64]:
        """The time of the engine's thread without the forward pass."""
        return self.begin + self.exposed

    @property
    def step(self) -> NDArray[np.float64]:
        """The time of the whole step."""
        return self.begin + self.forward + self.exposed


def race(
    contestants: Sequence[Contestant],
    workload: Workload,
    forward: Callable[[], object],
    *,
    steps: int,
    refill: bool = True,
) -> dict[str, Samples]:
    """Run the contestants in turn, in both orders, and measure the times.

    Args:
        contestants: each gets the same ids at the same step.
        workload: the batch.
        forward: runs between a contestant's begin and finish.
        steps: steps per round; there are ROUNDS rounds.
        refill: write the logits again before each turn, with one thread, so that each contestant finds the same values
            and the same caches, and no spinning threads of torch. Not timed.
    """
    fresh, common = workload.logits(), workload.logits()
    timed = ROUNDS * steps
    table = np.empty((len(contestants), _WARM_UP + timed, 3))
    clock = time.perf_counter
    gc.collect()
    gc.freeze()
    for step, token_ids in enumerate(workload.sampled(_WARM_UP + timed)):
        order = range(len(contestants))
        for index in order if step % 2 else reversed(order):
            contestant = contestants[index]
            logits = common if contestant.logits is None else contestant.logits
            if refill:
                np.copyto(_bytes(logits), _bytes(fresh))
            started = clock()
            contestant.begin(token_ids)
            begun = clock()
            forward()
            ready = clock()
            contestant.finish(logits)
            table[index, step] = begun - started, ready - begun, clock() - ready
    gc.unfreeze()
    measured = table[:, _WARM_UP:].reshape(len(contestants), ROUNDS, steps, 3)
    return {
        contestant.name: Samples(*np.moveaxis(rows, -1, 0))
        for contestant, rows in zip(contestants, measured, strict=True)
    }


def microseconds(seconds: NDArray[np.float64]) -> float:
    """The median of all steps."""
    return float(np.median(seconds)) * 1e6


def difference(seconds: NDArray[np.float64], reference: NDArray[np.float64] | float = 0.0) -> Ratio:
    """The difference of medians in microseconds, by round."""
    reference = np.broadcast_to(reference, seconds.shape)
    return over_rounds((np.median(seconds, axis=1) - np.median(reference, axis=1)) * 1e6)


def ratio(seconds: NDArray[np.float64], reference: NDArray[np.float64], quantile: float = 0.5) -> Ratio:
    """The ratio of two float64[rounds, steps] that were measured in turn: of their medians, or of another quantile."""
    return over_rounds(np.quantile(seconds, quantile, axis=1) / np.quantile(reference, quantile, axis=1))


def over_rounds(values: NDArray[np.float64]) -> Ratio:
    """Summarize one value for each round."""
    return Ratio(float(np.median(values)), float(values.min()), float(values.max()))


def _bytes(logits: torch.Tensor) -> Any:
    return logits.view(torch.uint8).numpy()
