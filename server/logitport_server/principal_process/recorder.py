"""Records the metrics of a principal's process, and reports them to the front door."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from logitport_server.metrics.bounded_labels import OTHERS, shortened
from logitport_server.metrics.counts import (
    ADMISSION_BOUNDS,
    MAX_REPORTED_NAMES,
    PART_OF,
    TRANSPORTS,
    Counts,
    ProcessorTally,
    SessionLoads,
    Times,
    tally_step,
)
from logitport_server.principal_process.report_messages import MetricsReport
from logitport_session.steps.compiled_batch import STEP_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from logitport_proto import common_pb2
    from logitport_server.metrics.server import StepReply
    from logitport_server.principal_process.link import Link
    from logitport_server.transports.departures import Departures
    from logitport_session.session import EngineSession
    from logitport_session.session_admissions import Admitted
    from logitport_session.steps.step_time import Spending

    class CountsLoads(Protocol):
        """Counts the loads of shipped processors, and the use of the GPU by workers; see `Executor` and `Gpu`."""

        @property
        def hits(self) -> int: ...
        @property
        def misses(self) -> int: ...


Key = TypeVar("Key")


class Recorder:
    """Counterpart of `Metrics` in a principal's process. Thread-safe.

    It adds up plain values, which `report` sends and sets to zero.

    Args:
        executor: counts the loads of shipped processors. An attribute `gpu`, if there is one, is a `Gpu` or None.
        departures: the open sessions of the process.
        installed: names of the installed processors. They do not count for the limit of names in a report.
        waiting_calls: returns the number of calls, frames and admissions that wait for a thread.

    Attributes:
        changed: set when the load has changed, for `Reporter`.
        refusals: counts refused requests.
        received, sent: functions that count bytes of messages, by transport.
    """

    def __init__(
        self,
        executor: CountsLoads,
        departures: Departures,
        installed: Collection[str] = (),
        waiting_calls: Callable[[], int] = lambda: 0,
    ) -> None:
        self.changed = threading.Event()
        self.refusals = RefusedRequests(self)
        self.received = {transport: partial(self._count_received, transport) for transport in TRANSPORTS}
        self.sent = {transport: partial(self._count_sent, transport) for transport in TRANSPORTS}
        self._executor = executor
        self._departures = departures
        self._fixed_names = frozenset(("", OTHERS, *installed))
        self._waiting_calls = waiting_calls
        self._sessions: set[EngineSession] = set()
        # Held for a few microseconds by each step; never while counts are encoded or sent.
        self._lock = threading.Lock()
        self._counts = Counts()
        # Held while a report is made and sent, so that reports arrive in their order.
        self._reporting = threading.Lock()
        self._reported_loads = SessionLoads()
        # What the counters of other objects were at the last report.
        self._reported_totals: dict[str, int] = {}

    def session_opened(self, session: EngineSession) -> None:
        """Add an open session."""
        self._sessions.add(session)
        self._set_changed()

    def session_closed(self, session: EngineSession) -> None:
        """Remove a session that was closed."""
        self._sessions.discard(session)
        self._add_compiled_steps_of(session)
        self._set_changed()

    def requests_removed(self) -> None:
        """Record that a session has dropped requests."""
        self._set_changed()

    def step(
        self,
        reply: StepReply,
        seconds: float,
        transport: str,
        principal: str = "",  # noqa: ARG002 - as in `Metrics`
        spending: Spending | None = None,
        queue_seconds: float = 0.0,
        *,
        refused: int = 0,
    ) -> None:
        """Record a step, or the part of it that processes logits; see `Metrics.step`. `principal` is not used."""
        failures = reply.failures[refused:] if refused else reply.failures
        with self._lock:
            counts = self._counts
            computed = counts.computed.get(transport)
            if computed is None:
                computed = counts.computed[transport] = {}
            _observe(computed, PART_OF[type(reply)], seconds)
            _observe(counts.queued, transport, queue_seconds)
            if spending is not None and spending.worker_queue is not None:
                if counts.worker_queue is None:
                    counts.worker_queue = Times.over(STEP_BOUNDS)
                counts.worker_queue.observe(STEP_BOUNDS, spending.worker_queue)
            tally_step(self._tally_of, reply.applied, failures, spending.processors if spending is not None else {})

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits; `memory` is "inline", "host" or "device"."""
        with self._lock:
            _increase(self._counts.logits_read, memory, 1)

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        """Record a frame of admissions; see `Metrics.admitted`."""
        with self._lock:
            counts = self._counts
            if counts.admission_queue is None:
                counts.admission_queue = Times.over(ADMISSION_BOUNDS)
            for seconds in (queue_seconds, *admitted.queue_seconds):
                counts.admission_queue.observe(ADMISSION_BOUNDS, seconds)
            counts.replayed_requests += admitted.replayed_requests
            counts.replayed_tokens += admitted.replayed_tokens
        self._set_changed()

    def local_frame(self, received_bytes: int, sent_bytes: int) -> None:
        """Count the bytes of a frame of the local transport, and of its reply."""
        with self._lock:
            _increase(self._counts.received, "local", received_bytes)
            _increase(self._counts.sent, "local", sent_bytes)

    def report(self, link: Link) -> None:
        """Send what was counted since the last report, and the present load, if something has changed."""
        with self._reporting:
            counts, loads = self._take(), self.loads()
            if counts != _NOTHING or loads != self._reported_loads:
                self._reported_loads = loads
                link.post(MetricsReport(counts=counts, loads=loads))

    def loads(self) -> SessionLoads:
        """Return the present load."""
        sessions = tuple(self._sessions)
        return SessionLoads(
            sessions=len(sessions),
            requests=sum(session.load for session in sessions),
            pending=sum(session.pending for session in sessions),
            waiting=sum(session.pending_admissions.waiting for session in sessions),
            movable_sessions=self._departures.movable_sessions,
            waiting_calls=self._waiting_calls(),
        )

    def _take(self) -> Counts:
        """Return the counts since the last call."""
        for session in tuple(self._sessions):
            self._add_compiled_steps_of(session)
        with self._lock:
            counts, self._counts = self._counts, Counts()
        processors: dict[str, ProcessorTally] = {}
        for name, tally in counts.processors.items():
            label = name if name in self._fixed_names else shortened(name)
            if label in processors:
                processors[label].add(tally)
            else:
                processors[label] = tally
        counts.processors = processors
        counts.loader_hits = self._growth("hits", self._executor.hits)
        counts.loader_misses = self._growth("misses", self._executor.misses)
        if (gpu := getattr(self._executor, "gpu", None)) is not None:
            counts.worker_gpus_refused = self._growth("gpu", gpu.refusals)
            growths = {memory: self._growth(f"gpu {memory}", calls) for memory, calls in dict(gpu.calls).items()}
            counts.worker_logits = {memory: growth for memory, growth in growths.items() if growth}
        return counts

    def _growth(self, counter: str, total: int) -> int:
        """Return by how much a counter of another object has grown since the last call."""
        growth = total - self._reported_totals.get(counter, 0)
        self._reported_totals[counter] = total
        return growth

    def _add_compiled_steps_of(self, session: EngineSession) -> None:
        compiled = session.take_compiled_counts()
        if compiled is None:
            return
        with self._lock:
            counts = self._counts
            for transport, steps in compiled.steps.items():
                if any(steps.computed.buckets):
                    _times_of(counts.computed.setdefault(transport, {}), "edits").add(steps.computed)
                if any(steps.queued.buckets):
                    _times_of(counts.queued, transport).add(steps.queued)
                if transport == "local":  # the front door counts what it relays
                    _increase(counts.received, transport, steps.received_bytes)
                    _increase(counts.sent, transport, steps.sent_bytes)
            for name, rows, times in compiled.processors:
                tally = self._tally_of(name)
                tally.times.add(times)
                tally.rows += rows

    def _tally_of(self, name: str) -> ProcessorTally:
        processors = self._counts.processors
        tally = processors.get(name)
        if tally is None:
            if len(processors) >= MAX_REPORTED_NAMES and name not in self._fixed_names:
                name = OTHERS
            tally = processors.setdefault(name, ProcessorTally())
        return tally

    def _count_received(self, transport: str, size_bytes: int) -> None:
        with self._lock:
            _increase(self._counts.received, transport, size_bytes)

    def _count_sent(self, transport: str, size_bytes: int) -> None:
        with self._lock:
            _increase(self._counts.sent, transport, size_bytes)

    def _count_refused(self, codes: Iterable[int]) -> None:
        with self._lock:
            for code in codes:
                _increase(self._counts.refused_requests, code, 1)

    def _set_changed(self) -> None:
        if not self.changed.is_set():
            self.changed.set()


class RefusedRequests:
    """Counterpart of `RefusalMetrics` for requests."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def requests(self, failures: Sequence[common_pb2.Failure], principal: str = "") -> None:  # noqa: ARG002
        """Count requests that a session, or a call of Apply, refused to add. `principal` is not used."""
        self._recorder._count_refused(failure.error.code for failure in failures)


_NOTHING = Counts()


def _times_of(times: dict[str, Times], key: str) -> Times:
    found = times.get(key)
    if found is None:
        found = times[key] = Times.over(STEP_BOUNDS)
    return found


def _observe(times: dict[str, Times], key: str, seconds: float) -> None:
    _times_of(times, key).observe(STEP_BOUNDS, seconds)


def _increase(counts: dict[Key, int], key: Key, amount: int) -> None:
    if amount:
        counts[key] = counts.get(key, 0) + amount
