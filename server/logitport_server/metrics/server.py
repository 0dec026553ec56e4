"""The metrics of one server."""

from __future__ import annotations

import importlib.metadata
import platform
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from logitport.core import compiled
from logitport_server.metrics.counts import ADMISSION_BOUNDS, MEMORIES, TRANSPORTS, Counts
from logitport_server.metrics.function_counter import FunctionCounter
from logitport_server.metrics.histogram import SecondsHistogram
from logitport_server.metrics.processors import ProcessorMetrics
from logitport_server.metrics.refusals import RefusalMetrics
from logitport_server.metrics.steps import StepMetrics
from logitport_server.version import VERSION
from logitport_session.steps.compiled_batch import STEP_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from logitport_server.metrics.counts import SessionLoads
    from logitport_server.registry.quarantine import Quarantine

    class Workers(Protocol):
        """The workers of a server; see `WorkerService`."""

        @property
        def quarantine(self) -> Quarantine: ...
        @property
        def running(self) -> int: ...
        def resident_bytes(self) -> int: ...


class Metrics:
    """The metrics of one server.

    Args:
        installed: names of the installed processors. Each has a label of its own.

    Attributes:
        registry: the collector registry; each server has its own.
        processors: the metrics by processor.
        refusals: the refused calls and requests.
        loads: what each running process of a principal has reported last of its open sessions, by the process.
        received, sent: functions that count bytes of messages, by transport.
    """

    def __init__(self, installed: Collection[str] = ()) -> None:
        # With auto_describe, the names of a collector are those of its first collection: a second one is refused.
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self.loads: dict[object, SessionLoads] = {}
        self._adding_reports = threading.Lock()
        # Sums of the reports, for the counters that read their values from here.
        self._reported = Counts(worker_logits=dict.fromkeys(MEMORIES, 0))
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
            lambda: sum(loads.waiting for loads in self._loads()),
        )
        self.processors = ProcessorMetrics(installed)
        self.refusals = RefusalMetrics()
        self._steps = StepMetrics()
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
        self.counter("logitport_loader_hits", "Loads from the cache of classes", {"": lambda: self.loader_hits})
        self.counter("logitport_loader_misses", "Loads that unpickled", {"": lambda: self.loader_misses})
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

    def watch_workers(self, workers: Workers, *, hold_gpu: bool) -> None:
        """Add the metrics of worker processes, and of the GPU that some may hold."""
        self.gauge(
            "logitport_workers", "Worker processes, one per trust domain and Python version", lambda: workers.running
        )
        self.gauge(
            "logitport_workers_resident_memory_bytes",
            "Resident memory of all workers, in which pages that they share count once for each",
            workers.resident_bytes,
        )
        self.counter(
            "logitport_workers_lost",
            "Workers terminated because of a processor",
            {"": lambda: workers.quarantine.failures},
        )
        self.gauge(
            "logitport_processors_quarantined",
            "Processors in quarantine, not called",
            lambda: len(workers.quarantine),
        )
        if not hold_gpu:
            return
        self.counter(
            "logitport_worker_logits",
            "Calls of workers with logits on the GPU, by the memory they were passed in: host or device",
            {memory: partial(self._reported.worker_logits.__getitem__, memory) for memory in MEMORIES},
            "memory",
        )
        self.counter(
            "logitport_worker_gpus_refused",
            "Workers that have access to the GPU but failed to use it; their rows are passed in host memory",
            {"": lambda: self._reported.worker_gpus_refused},
        )

    @property
    def num_pending(self) -> int:
        """Number of requests that are being admitted in the background."""
        return sum(loads.pending for loads in self._loads())

    def load(self) -> tuple[int, int]:
        """Return the number of open sessions, and of the requests that they hold or expect."""
        reported = self._loads()
        return sum(loads.sessions for loads in reported), sum(loads.requests for loads in reported)

    @property
    def waiting_calls(self) -> int:
        """Number of calls, frames and admissions that wait for a thread of a principal's process."""
        return sum(loads.waiting_calls for loads in self._loads())

    @property
    def loader_hits(self) -> int:
        """Loads of shipped processors from the cache of classes."""
        return self._reported.loader_hits

    @property
    def loader_misses(self) -> int:
        """Loads of shipped processors that unpickled."""
        return self._reported.loader_misses

    @property
    def num_steps(self) -> int:
        """Number of steps answered since the start, with the calls of Apply."""
        return self._steps.num_steps

    def add_report(self, principal: str, counts: Counts) -> None:
        """Add what a process of this principal has counted since its last report.

        Leaves out negative and unknown values: processes run code of their principals' processors. `loads` is to be
        set apart.
        """
        self._steps.add_report(counts)
        self.processors.add_report(principal, counts.processors)
        self.refusals.add_report(principal, counts.refused_requests)
        self._worker_queue.add_report(counts.worker_queue)
        self._admission_queue.add_report(counts.admission_queue)
        for memory in MEMORIES:
            self._read_in[memory].inc(max(0, counts.logits_read.get(memory, 0)))
        self._replayed_requests.inc(max(0, counts.replayed_requests))
        self._replayed_tokens.inc(max(0, counts.replayed_tokens))
        with self._adding_reports:
            self._reported.loader_hits += max(0, counts.loader_hits)
            self._reported.loader_misses += max(0, counts.loader_misses)
            self._reported.worker_gpus_refused += max(0, counts.worker_gpus_refused)
            for memory in MEMORIES:
                self._reported.worker_logits[memory] += max(0, counts.worker_logits.get(memory, 0))

    def _loads(self) -> tuple[SessionLoads, ...]:
        """Return a copy: `loads` changes on the thread of the event loop."""
        return tuple(self.loads.values())

    def counter(self, name: str, documentation: str, values: Mapping[str, Callable[[], int]], label: str = "") -> None:
        """Add a counter that reads its values, by the value of its label, when the metrics are read."""
        self.registry.register(FunctionCounter(name, documentation, values, label))

    def _add_waits(self) -> None:
        registry = self.registry
        read = Counter(
            "logitport_logits_read",
            "Steps that read logits, by the memory of the logits: inline, host, or device (a GPU)",
            ["memory"],
            registry=registry,
        )
        self._read_in = {memory: read.labels(memory) for memory in MEMORIES}
        self._worker_queue = SecondsHistogram(
            "logitport_worker_queue_seconds",
            "Seconds that the calls of a step have waited for workers that were busy",
            STEP_BOUNDS,
        )
        self._admission_queue = SecondsHistogram(
            "logitport_admission_queue_seconds",
            "Seconds that admissions have waited before they began, by frame or, in the background, by request",
            ADMISSION_BOUNDS,
        )
        registry.register(self._worker_queue)
        registry.register(self._admission_queue)
