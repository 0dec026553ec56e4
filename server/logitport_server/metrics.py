"""Metrics of a server, for Prometheus."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import partial
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
from logitport_server.counts import FunctionCounter
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from logitport.errors import LogitportError
    from logitport_server.executors import Gpu
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.session.session import EngineSession

    StepReply = processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse

# Seconds. The range covers everything from a fast logits-free step to a batch of logits sent inline.
_BUCKETS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5)

# Labels of processors that are not installed: of one principal, and of all. They bound the number of time series.
_MAX_OWN_LABELS = 64
_MAX_LABELS = 1024
_OTHERS = "(others)"

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
        pending.set_function(lambda: sum(session.pending for session in tuple(self._sessions)))
        self._steps = Counter("logitport_steps", "Steps answered, by transport", ["transport"], registry=registry)
        self._applied = Counter("logitport_rows_applied", "Rows by processor", ["processor"], registry=registry)
        self._failed = Counter(
            "logitport_requests_failed",
            "Requests that failed in a step, by processor and error",
            ["processor", "code"],
            registry=registry,
        )
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
        self._counters: dict[tuple[str, str], Counter] = {}
        self._installed = frozenset(installed)
        # By principal. One principal may use a label of another; it then counts for both.
        self._labels: dict[str, set[str]] = {}
        self._num_labels = 0
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

    def load(self) -> tuple[int, int]:
        """Return the number of open sessions, and of the requests that they hold."""
        sessions = tuple(self._sessions)
        return len(sessions), sum(map(len, sessions))

    def step(self, reply: StepReply, seconds: float, transport: str, principal: str) -> None:
        """Record a step of this principal, or the part of it that processes logits, from its reply."""
        if type(reply) is not processing_pb2.StepLogitsEdited:
            self._steps_by[transport].inc()
        self._seconds_by[transport, type(reply)].observe(seconds)
        for applied in reply.applied:
            self._applied_to(applied.display_name or applied.processor, principal).inc(applied.rows)
        for failure in reply.failures:
            code = failure.error.code
            # The name of an unknown processor is not used: clients can send any number of such names.
            name = "" if code == common_pb2.ERROR_CODE_UNKNOWN_PROCESSOR else failure.error.processor
            self._failed.labels(self._label(name, principal), code_label(code)).inc()

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits; `memory` is "inline", "host" or "device"."""
        self._read_in[memory].inc()

    def _applied_to(self, processor: str, principal: str) -> Counter:
        counter = self._counters.get((principal, processor))
        if counter is None:
            label = self._label(processor, principal)
            counter = self._applied.labels(label)
            if label != _OTHERS and len(self._counters) < _MAX_LABELS:
                self._counters[principal, processor] = counter
        return counter

    def _label(self, processor: str, principal: str) -> str:
        """The processor's label; `_OTHERS` if it is not installed, and the principal or all have too many labels."""
        if not processor or processor in self._installed:
            return processor
        own = self._labels.get(principal, set())
        if processor in own:
            return processor
        if len(own) >= _MAX_OWN_LABELS or self._num_labels >= _MAX_LABELS:
            return _OTHERS
        self._labels.setdefault(principal, own).add(processor)
        self._num_labels += 1
        return processor


def code_label(code: int) -> str:
    """The label of an error code, such as "INVALID_PARAMS"."""
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")
