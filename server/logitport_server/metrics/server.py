"""The metrics of one server."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

from logitport.errors import to_proto
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics.codes import code_label
from logitport_server.metrics.function_counter import FunctionCounter
from logitport_server.metrics.processors import ProcessorMetrics
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from logitport.errors import LogitportError
    from logitport_server.executors import Gpu
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.session.session import EngineSession

    StepReply = processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse

# Seconds. The range covers everything from a fast logits-free step to a batch of logits sent inline.
_BUCKETS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5)

_PARTS = {
    processing_pb2.StepEdits: "edits",
    processing_pb2.StepLogitsEdited: "logits",
    processing_pb2.ApplyResponse: "apply",
}


class Loads(Protocol):
    """Counts of loads of shipped processors, as a loader or an executor has them."""

    @property
    def hits(self) -> int:
        """Loads from a cache."""

    @property
    def misses(self) -> int:
        """Loads that unpickled."""


class Workers(Protocol):
    """An executor that runs processors in workers."""

    @property
    def running(self) -> int:
        """Number of workers."""

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of processors that terminated workers."""

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that workers may use."""


class Metrics:
    """The metrics of one server.

    Args:
        loads: counts of loads of shipped processors.
        installed: names of the installed processors. Each has a label of its own.

    Attributes:
        registry: the collector registry; each server has its own.
        processors: the metrics by processor.
    """

    def __init__(self, loads: Loads, installed: Collection[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        self._sessions: set[EngineSession] = set()
        sessions = Gauge("logitport_sessions", "Sessions that are open", registry=registry)
        sessions.set_function(lambda: self.load()[0])
        requests = Gauge("logitport_requests", "Requests that open sessions hold", registry=registry)
        requests.set_function(lambda: self.load()[1])
        pending = Gauge(
            "logitport_requests_pending", "Requests that are being admitted in the background", registry=registry
        )
        pending.set_function(lambda: self.num_pending)
        self._steps = Counter("logitport_steps", "Steps answered, by transport", ["transport"], registry=registry)
        self.processors = ProcessorMetrics(installed)
        registry.register(self.processors)
        self._seconds = Histogram(
            "logitport_step_seconds",
            "Seconds to compute a step, by part: edits, logits, or apply (a call of Apply)",
            ["transport", "part"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._refused = Counter(
            "logitport_calls_refused",
            "Calls refused before their message was read, by error",
            ["code"],
            registry=registry,
        )
        self._requests_refused = Counter(
            "logitport_requests_refused", "Requests that sessions refused to add, by error", ["code"], registry=registry
        )
        # A counter that appears with its first event has no rate for it: Prometheus needs the value before.
        for code in common_pb2.ErrorCode.values():
            self._refused.labels(code_label(code))
            self._requests_refused.labels(code_label(code))
        # Children are kept, because looking one up by its labels takes longer than counting.
        self._steps_by = {transport: self._steps.labels(transport) for transport in ("unary", "grpc", "local")}
        self._seconds_by = {
            (transport, reply): self._seconds.labels(transport, part)
            for transport in self._steps_by
            for reply, part in _PARTS.items()
        }
        self._read = Counter(
            "logitport_logits_read",
            "Steps that read logits, by the memory of the logits: inline, host, or device (a GPU)",
            ["memory"],
            registry=registry,
        )
        self._read_in = {memory: self._read.labels(memory) for memory in ("inline", "host", "device")}
        hits, misses = {"": lambda: loads.hits}, {"": lambda: loads.misses}
        registry.register(FunctionCounter("logitport_loader_hits", "Loads from the cache of classes", hits))
        registry.register(FunctionCounter("logitport_loader_misses", "Loads that unpickled", misses))
        build = Gauge(
            "logitport_build_info", "Versions; the value is 1", ["version", "python", "torch"], registry=registry
        )
        build.labels(VERSION, platform.python_version(), importlib.metadata.version("torch")).set(1)
        ProcessCollector(registry=registry)

    def watch_workers(self, workers: Workers) -> None:
        """Add the metrics of worker processes."""
        running = Gauge(
            "logitport_workers", "Worker processes, one per trust domain and Python version", registry=self.registry
        )
        running.set_function(lambda: workers.running)
        lost = {"": lambda: workers.quarantine.failures}
        self.registry.register(
            FunctionCounter("logitport_workers_lost", "Workers terminated because of a processor", lost)
        )
        held = Gauge("logitport_processors_quarantined", "Processors in quarantine, not called", registry=self.registry)
        held.set_function(lambda: len(workers.quarantine))
        if (gpu := workers.gpu) is not None:
            self.registry.register(
                FunctionCounter(
                    "logitport_worker_logits",
                    "Calls of workers with logits on the GPU, by the memory they were passed in: host or device",
                    {memory: partial(gpu.calls.__getitem__, memory) for memory in gpu.calls},
                    "memory",
                )
            )
            self.registry.register(
                FunctionCounter(
                    "logitport_worker_gpus_refused",
                    "Workers that have access to the GPU but failed to use it; their rows are passed in host memory",
                    {"": lambda: gpu.refusals},
                )
            )

    def call_refused(self, error: LogitportError) -> None:
        """Count a call that was refused."""
        self._refused.labels(code_label(to_proto(error).code)).inc()

    def requests_refused(self, failures: Iterable[common_pb2.Failure]) -> None:
        """Count requests that a session refused to add."""
        for failure in failures:
            self._requests_refused.labels(code_label(failure.error.code)).inc()

    def session_opened(self, session: EngineSession) -> None:
        """Add an open session."""
        self._sessions.add(session)

    def session_closed(self, session: EngineSession) -> None:
        """Remove a session that was closed."""
        self._sessions.discard(session)

    @property
    def num_pending(self) -> int:
        """Number of requests that are being admitted in the background."""
        return sum(session.pending for session in tuple(self._sessions))

    def load(self) -> tuple[int, int]:
        """Return the number of open sessions, and of the requests that they hold."""
        sessions = tuple(self._sessions)
        return len(sessions), sum(map(len, sessions))

    @property
    def num_steps(self) -> int:
        """Number of steps answered since the start, with the calls of Apply."""
        (steps,) = self._steps.collect()
        return round(sum(sample.value for sample in steps.samples if sample.name.endswith("_total")))

    def step(
        self,
        reply: StepReply,
        seconds: float,
        transport: str,
        principal: str,
        processor_seconds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Record a step, or the part of it that processes logits.

        Args:
            reply: its reply.
            seconds: how long it took.
            transport: how its frame arrived: "unary", "grpc" or "local".
            principal: name of the calling principal.
            processor_seconds: how long it took in each processor, by display name.
        """
        if type(reply) is not processing_pb2.StepLogitsEdited:
            self._steps_by[transport].inc()
        self._seconds_by[transport, type(reply)].observe(seconds)
        self.processors.step(principal, reply.applied, reply.failures, processor_seconds)

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits; `memory` is "inline", "host" or "device"."""
        self._read_in[memory].inc()
