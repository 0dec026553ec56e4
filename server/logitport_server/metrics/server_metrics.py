"""The metrics of one server. docs/architecture.md says how to add one."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector

from logitport.core import compiled
from logitport.system.installation import has_torch
from logitport_server.metrics.counts import ADMISSION_BOUNDS, MEMORIES, TRANSPORTS, Counts, Times
from logitport_server.metrics.event_metrics import EventMetrics
from logitport_server.metrics.family import Families, counter, gauge, histogram
from logitport_server.metrics.processor_metrics import ProcessorMetrics
from logitport_server.metrics.refusal_metrics import RefusalMetrics
from logitport_server.metrics.steps import StepMetrics
from logitport_server.version import VERSION
from logitport_session.telemetry.time_buckets import STEP_BOUNDS

if TYPE_CHECKING:
    from logitport_server.metrics.counts import SessionLoads
    from logitport_server.metrics.family import Family
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

    Attributes:
        registry: the collector registry; each server has its own.
        processors: the metrics by processor.
        refusals: the refused calls and requests.
        loads: what each running process of a principal has reported last of its open sessions, by the process.
        received, sent: functions that count bytes of messages, by transport.
    """

    def __init__(self) -> None:
        # With auto_describe, the names of a collector are those of its first collection: a second one is refused.
        self.registry = CollectorRegistry(auto_describe=True)
        self.loads: dict[object, SessionLoads] = {}
        self.processors = ProcessorMetrics()
        self.refusals = RefusalMetrics()
        self._events = EventMetrics()
        self._steps = StepMetrics()
        self._reports = Families()
        # Sums of the reports, from which their metrics read.
        self._reported = reported = Counts(
            worker_queue=Times.over(STEP_BOUNDS),
            admission_queue=Times.over(ADMISSION_BOUNDS),
            logits_read=dict.fromkeys(MEMORIES, 0),
            worker_logits=dict.fromkeys(MEMORIES, 0),
        )
        self.received = {transport: partial(self._steps.received, transport) for transport in TRANSPORTS}
        self.sent = {transport: partial(self._steps.sent, transport) for transport in TRANSPORTS}
        self._reports.families = (
            counter(
                "logitport_requests_replayed",
                "Requests that were added with ids that had been generated before, or again",
                lambda: reported.replayed_requests,
            ),
            counter(
                "logitport_tokens_replayed",
                "Token ids of the histories of replayed requests",
                lambda: reported.replayed_tokens,
            ),
            counter("logitport_loader_hits", "Loads from the cache of classes", lambda: reported.loader_hits),
            counter("logitport_loader_misses", "Loads that unpickled", lambda: reported.loader_misses),
            counter(
                "logitport_logits_read",
                "Steps that read logits, by the memory of the logits: inline, host, or device (a GPU)",
                lambda: reported.logits_read,
                "memory",
            ),
            histogram(
                "logitport_worker_queue_seconds",
                "Seconds that the calls of a step have waited for workers that were busy",
                STEP_BOUNDS,
                lambda: reported.worker_queue or 0.0,
            ),
            histogram(
                "logitport_admission_queue_seconds",
                "Seconds that admissions have waited before they began, by frame or, in the background, by request",
                ADMISSION_BOUNDS,
                lambda: reported.admission_queue or 0.0,
            ),
        )
        for families in (self._reports, self._steps, self.processors, self.refusals, self._events):
            self.registry.register(families)
        self._add_loads()
        self._add_versions()
        ProcessCollector(registry=self.registry)

    def add(self, family: Family) -> None:
        """Export a metric of another part of the server."""
        self.registry.register(family)

    def watch_workers(self, workers: Workers, *, hold_gpu: bool) -> None:
        """Add the metrics of worker processes, and of the GPU that some may hold."""
        reported = self._reported
        families = [
            gauge(
                "logitport_workers",
                "Worker processes, one per trust domain and Python version",
                lambda: workers.running,
            ),
            gauge(
                "logitport_workers_resident_memory_bytes",
                "Resident memory of all workers, in which pages that they share count once for each",
                workers.resident_bytes,
            ),
            counter(
                "logitport_workers_lost",
                "Workers terminated because of a processor; the next call restarts one",
                lambda: workers.quarantine.failures,
            ),
            gauge(
                "logitport_processors_quarantined",
                "Processors in quarantine, not called",
                lambda: len(workers.quarantine),
            ),
        ]
        if hold_gpu:
            families += [
                counter(
                    "logitport_worker_logits",
                    "Calls of workers with logits on the GPU, by the memory they were passed in: host or device",
                    lambda: reported.worker_logits,
                    "memory",
                ),
                counter(
                    "logitport_worker_gpus_refused",
                    "Workers that have access to the GPU but failed to use it; their rows are passed in host memory",
                    lambda: reported.worker_gpus_refused,
                ),
            ]
        for family in families:
            self.add(family)

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
        self._events.add_report(principal, counts.events)
        with self._reports.lock:
            self._reported.add(counts)

    def _loads(self) -> tuple[SessionLoads, ...]:
        """Return a copy: `loads` changes on the thread of the event loop."""
        return tuple(self.loads.values())

    def _add_loads(self) -> None:
        self.add(gauge("logitport_sessions", "Sessions that are open", lambda: self.load()[0]))
        self.add(gauge("logitport_requests", "Requests that open sessions hold", lambda: self.load()[1]))
        self.add(
            gauge(
                "logitport_requests_pending",
                "Requests that are being admitted in the background",
                lambda: self.num_pending,
            )
        )
        self.add(
            gauge(
                "logitport_requests_waiting",
                "Requests whose admission in the background has not begun",
                lambda: sum(loads.waiting for loads in self._loads()),
            )
        )

    def _add_versions(self) -> None:
        labels = {
            "version": VERSION,
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch") if has_torch() else "none",
            "core": compiled.NAME,
        }
        self.add(gauge("logitport_build_info", "Versions; the value is 1", lambda: {(*labels.values(),): 1}, *labels))
