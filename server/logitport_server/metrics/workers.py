"""Metrics of worker processes, and of their GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import Gauge

from logitport_server.metrics.function_counter import FunctionCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry

    from logitport_server.executors import Gpu
    from logitport_server.executors.report import WorkerReport
    from logitport_server.registry.quarantine import Quarantine


class Workers(Protocol):
    """An executor that runs processors in workers."""

    @property
    def running(self) -> int:
        """Number of workers."""

    def workers(self) -> Sequence[WorkerReport]:
        """Return what each worker does."""

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of processors that terminated workers."""

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that workers may use."""


def add_worker_metrics(registry: CollectorRegistry, workers: Workers) -> None:
    """Add the metrics of an executor's workers to a collector registry."""
    running = Gauge("logitport_workers", "Worker processes, one per trust domain and Python version", registry=registry)
    running.set_function(lambda: workers.running)
    memory = Gauge(
        "logitport_workers_resident_memory_bytes",
        "Resident memory of all workers, in which pages that they share count once for each",
        registry=registry,
    )
    memory.set_function(lambda: sum(worker.memory_bytes for worker in workers.workers()))
    lost = {"": lambda: workers.quarantine.failures}
    registry.register(FunctionCounter("logitport_workers_lost", "Workers terminated because of a processor", lost))
    held = Gauge("logitport_processors_quarantined", "Processors in quarantine, not called", registry=registry)
    held.set_function(lambda: len(workers.quarantine))
    if (gpu := workers.gpu) is None:
        return
    registry.register(
        FunctionCounter(
            "logitport_worker_logits",
            "Calls of workers with logits on the GPU, by the memory they were passed in: host or device",
            {memory: partial(gpu.calls.__getitem__, memory) for memory in gpu.calls},
            "memory",
        )
    )
    registry.register(
        FunctionCounter(
            "logitport_worker_gpus_refused",
            "Workers that have access to the GPU but failed to use it; their rows are passed in host memory",
            {"": lambda: gpu.refusals},
        )
    )
