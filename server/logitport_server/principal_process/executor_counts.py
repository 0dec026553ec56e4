"""Counts the loads of shipped processors, and the use of the GPU by workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from logitport_server.metrics.counts import Counts

    class CountsLoads(Protocol):
        """Counts the loads of shipped processors; see `Executor`."""

        @property
        def hits(self) -> int: ...
        @property
        def misses(self) -> int: ...


class ExecutorCounts:
    """What the counters of an executor have grown by since the last report. Not thread-safe.

    Args:
        executor: an attribute `gpu`, if there is one, is a `Gpu` or None.
    """

    def __init__(self, executor: CountsLoads) -> None:
        self._executor = executor
        self._totals: dict[str, int] = {}

    def add_to(self, counts: Counts) -> None:
        """Write the growth since the last call into a report."""
        counts.loader_hits = self._growth("hits", self._executor.hits)
        counts.loader_misses = self._growth("misses", self._executor.misses)
        if (gpu := getattr(self._executor, "gpu", None)) is not None:
            counts.worker_gpus_refused = self._growth("gpu", gpu.refusals)
            growths = {memory: self._growth(f"gpu {memory}", calls) for memory, calls in dict(gpu.calls).items()}
            counts.worker_logits = {memory: growth for memory, growth in growths.items() if growth}

    def _growth(self, counter: str, total: int) -> int:
        growth = total - self._totals.get(counter, 0)
        self._totals[counter] = total
        return growth
