"""The metrics of one server."""

from __future__ import annotations

import importlib.metadata
import platform
import threading
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from logitport import compiled
from logitport_proto import processing_pb2
from logitport_server.metrics.processors import ProcessorMetrics
from logitport_server.metrics.refusals import RefusalMetrics
from logitport_server.metrics.steps import TRANSPORTS, StepMetrics
from logitport_server.version import VERSION
from logitport_session.steps.compiled_batch import STEP_BOUNDS
from logitport_session.steps.step_time import Spending

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from logitport_server.executors import Executor, ProcessExecutor
    from logitport_session.session import EngineSession
    from logitport_session.session_admissions import Admitted

    StepReply = processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse

# Seconds that an admission may wait, behind classes that load slowly.
_ADMISSION_BUCKETS = (1e-3, 1e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

_PARTS = {
    processing_pb2.StepEdits: "edits",
    processing_pb2.StepLogitsEdited: "logits",
    processing_pb2.ApplyResponse: "apply",
}


class Metrics:
    """The metrics of one server.

    Args:
        executor: counts the loads of shipped processors.
        installed: names of the installed processors. Each has a label of its own.

    Attributes:
        registry: the collector registry; each server has its own.
        processors: the metrics by processor.
        refusals: the refused calls and requests.
        received, sent: functions that count bytes of messages, by transport.
    """

    def __init__(self, executor: Executor, installed: Collection[str] = ()) -> None:
        # With auto_describe, the names of a collector are those of its first collection: a second one is refused.
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._sessions: set[EngineSession] = set()
        self._adding = threading.Lock()
        self.gauge("logitport_sessions", "Sessions that are open", lambda: self.load()[0])
        self.gauge("logitport_requests", "Requests that open sessions hold", lambda: self.load()[1])
        self.gauge(
            "logitport_requests_pending",
            "Requests that are being admitted in the background",
            lambda: self.num_pending,
        )
        self.gauge(
            "logitport_requests_waiting",
            "Requests whose admission in the background has not begun",
            lambda: sum(session.pending_admissions.waiting for session in tuple(self._sessions)),
        )
        self.processors = ProcessorMetrics(installed, self._add_compiled_steps)
        self.refusals = RefusalMetrics()
        self._steps = StepMetrics(self._add_compiled_steps)
        registry.register(self._steps)
        registry.register(self.processors)
        registry.register(self.refusals)
        self._add_waits()
        self._replayed_requests = Counter(
            "logitport_requests_replayed",
            "Requests that were added with ids that had been generated before, or again",
            registry=registry,
        )
        self._replayed_tokens = Counter(
            "logitport_tokens_replayed", "Token ids of the histories of replayed requests", registry=registry
        )
        self.received = {transport: partial(self._steps.received, transport) for transport in TRANSPORTS}
        self.sent = {transport: partial(self._steps.sent, transport) for transport in TRANSPORTS}
        self._counter("logitport_loader_hits", "Loads from the cache of classes", {"": lambda: executor.hits})
        self._counter("logitport_loader_misses", "Loads that unpickled", {"": lambda: executor.misses})
        labels = {
            "version": VERSION,
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "core": compiled.NAME,
        }
        build = Gauge("logitport_build_info", "Versions; the value is 1", [*labels], registry=registry)
        build.labels(**labels).set(1)
        ProcessCollector(registry=registry)

    def gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Add a gauge that reads its value when the metrics are read."""
        Gauge(name, documentation, registry=self.registry).set_function(value)

    def watch_workers(self, executor: ProcessExecutor) -> None:
        """Add the metrics of worker processes, and of the GPU that they may use."""
        self.gauge(
            "logitport_workers", "Worker processes, one per trust domain and Python version", lambda: executor.running
        )
        self.gauge(
            "logitport_workers_resident_memory_bytes",
            "Resident memory of all workers, in which pages that they share count once for each",
            lambda: sum(worker.memory_bytes for worker in executor.workers()),
        )
        self._counter(
            "logitport_workers_lost",
            "Workers terminated because of a processor",
            {"": lambda: executor.quarantine.failures},
        )
        self.gauge(
            "logitport_processors_quarantined",
            "Processors in quarantine, not called",
            lambda: len(executor.quarantine),
        )
        if (gpu := executor.gpu) is None:
            return
        self._counter(
            "logitport_worker_logits",
            "Calls of workers with logits on the GPU, by the memory they were passed in: host or device",
            {memory: partial(gpu.calls.__getitem__, memory) for memory in gpu.calls},
            "memory",
        )
        self._counter(
            "logitport_worker_gpus_refused",
            "Workers that have access to the GPU but failed to use it; their rows are passed in host memory",
            {"": lambda: gpu.refusals},
        )

    def session_opened(self, session: EngineSession) -> None:
        """Add an open session."""
        self._sessions.add(session)

    def session_closed(self, session: EngineSession) -> None:
        """Remove a session that was closed."""
        with self._adding:
            self._sessions.discard(session)
            self._add_compiled_steps_of(session)

    @property
    def num_pending(self) -> int:
        """Number of requests that are being admitted in the background."""
        return sum(session.pending for session in tuple(self._sessions))

    def load(self) -> tuple[int, int]:
        """Return the number of open sessions, and of the requests that they hold or expect."""
        sessions = tuple(self._sessions)
        return len(sessions), sum(session.load for session in sessions)

    @property
    def num_steps(self) -> int:
        """Number of steps answered since the start, with the calls of Apply."""
        return self._steps.num_steps

    def step(
        self,
        reply: StepReply,
        seconds: float,
        transport: str,
        principal: str,
        spending: Spending | None = None,
        queue_seconds: float = 0.0,
        *,
        refused: int = 0,
    ) -> None:
        """Record a step, or the part of it that processes logits.

        Args:
            reply: its reply.
            seconds: how long it took.
            transport: how its frame arrived: "unary", "grpc" or "local".
            principal: name of the calling principal.
            spending: what it has spent its time on.
            queue_seconds: how long it has waited before it was computed.
            refused: how many of its failures are refused requests, which `refusals` counts. They come first.
        """
        spending = spending or Spending()
        self._steps.step(transport, _PARTS[type(reply)], seconds, queue_seconds)
        if spending.worker_queue is not None:
            self._worker_queue.observe(spending.worker_queue)
        failures = reply.failures[refused:] if refused else reply.failures
        self.processors.step(principal, reply.applied, failures, spending.processors)

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits; `memory` is "inline", "host" or "device"."""
        self._read_in[memory].inc()

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        """Record a frame of admissions.

        Args:
            admitted: what its session has admitted since the frame before.
            queue_seconds: how long the frame has waited before its admissions began, or were queued.
        """
        self._admission_queue.observe(queue_seconds)
        for seconds in admitted.queue_seconds:
            self._admission_queue.observe(seconds)
        self._replayed_requests.inc(admitted.replayed_requests)
        self._replayed_tokens.inc(admitted.replayed_tokens)

    def local_frame(self, received_bytes: int, sent_bytes: int) -> None:
        """Count the bytes of a frame of the local transport, and of its reply."""
        self.received["local"](received_bytes)
        self.sent["local"](sent_bytes)

    def _add_compiled_steps(self) -> None:
        """Add the steps that the compiled core has counted: all of them, because this precedes each reading."""
        with self._adding:  # a second reader waits until the first one has added them
            for session in tuple(self._sessions):
                self._add_compiled_steps_of(session)

    def _add_compiled_steps_of(self, session: EngineSession) -> None:
        counts = session.take_compiled_counts()
        if counts is None:
            return
        self._steps.add_counts(counts.steps)
        self.processors.add_counts(session.principal.name, counts.processors)

    def _counter(self, name: str, documentation: str, values: Mapping[str, Callable[[], int]], label: str = "") -> None:
        self.registry.register(_FunctionCounter(name, documentation, values, label))

    def _add_waits(self) -> None:
        registry = self.registry
        read = Counter(
            "logitport_logits_read",
            "Steps that read logits, by the memory of the logits: inline, host, or device (a GPU)",
            ["memory"],
            registry=registry,
        )
        self._read_in = {memory: read.labels(memory) for memory in ("inline", "host", "device")}
        self._worker_queue = Histogram(
            "logitport_worker_queue_seconds",
            "Seconds that the calls of a step have waited for workers that were busy",
            buckets=STEP_BOUNDS,
            registry=registry,
        )
        self._admission_queue = Histogram(
            "logitport_admission_queue_seconds",
            "Seconds that admissions have waited before they began, by frame or, in the background, by request",
            buckets=_ADMISSION_BUCKETS,
            registry=registry,
        )


class _FunctionCounter(Collector):
    """A counter that gets its values from functions. prometheus_client offers that for gauges only.

    Args:
        name: without `_total`.
        documentation: one line.
        values: a function for each value of the label; it returns a number that never falls.
        label: name of the label; "" for a counter with one value, that of the key "".
    """

    def __init__(self, name: str, documentation: str, values: Mapping[str, Callable[[], int]], label: str = "") -> None:
        self._name = name
        self._documentation = documentation
        self._values = values
        self._labels = [label] if label else []

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counter with its values."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, read in self._values.items():
            family.add_metric([value] if self._labels else [], read())
        return [family]
