"""Counts what the sessions and calls of a principal's process do, until its next report."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from logitport.core.row_events import BUILTIN_EVENTS
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics.bounded_labels import OTHERS, shortened
from logitport_server.metrics.counts import (
    ADMISSION_BOUNDS,
    MAX_REPORTED_EVENTS,
    MAX_REPORTED_NAMES,
    Counts,
    ProcessorTally,
    SessionLoads,
    Times,
)
from logitport_session.steps.outcome import StepDurations
from logitport_session.telemetry.time_buckets import PROCESSOR_BOUNDS, STEP_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted

    StepReply = processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse

Key = TypeVar("Key")

# The part of a step that a reply answers.
_PART_OF = {
    processing_pb2.StepEdits: "edits",
    processing_pb2.StepLogitsEdited: "logits",
    processing_pb2.ApplyResponse: "apply",
}


class SessionCounts:
    """Adds up plain values, which `take` returns and sets to zero. Thread-safe.

    Args:
        installed: names of the installed processors. They do not count for the limit of names in a report.

    Attributes:
        changed: set when the load has changed, for `Reporter`.
    """

    def __init__(self, installed: Collection[str] = ()) -> None:
        self.changed = threading.Event()
        self._fixed_names = frozenset(("", OTHERS, *installed))
        self._sessions: set[EngineSession] = set()
        # Held for a few microseconds by each step; never while counts are encoded or sent.
        self._lock = threading.Lock()
        self._counts = Counts()

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
        durations: StepDurations | None = None,
        queue_seconds: float = 0.0,
        *,
        refused: int = 0,
    ) -> None:
        """Record a step, or the part of it that processes logits.

        Args:
            reply: its reply.
            seconds: how long it took.
            transport: how its frame arrived: "unary", "grpc" or "local".
            durations: what it has spent its time on.
            queue_seconds: how long it has waited before it was computed.
            refused: how many of its failures are refused requests, see `requests_refused`. They come first.
        """
        durations = durations or StepDurations()
        failures = reply.failures[refused:] if refused else reply.failures
        with self._lock:
            counts = self._counts
            parts = counts.computed.get(transport)
            if parts is None:
                parts = counts.computed[transport] = {}
            computed, queued = _times_of(parts, _PART_OF[type(reply)]), _times_of(counts.queued, transport)
            computed.observe(STEP_BOUNDS, seconds)
            queued.observe(STEP_BOUNDS, queue_seconds)
            if durations.worker_queue is not None:
                if counts.worker_queue is None:
                    counts.worker_queue = Times.over(STEP_BOUNDS)
                counts.worker_queue.observe(STEP_BOUNDS, durations.worker_queue)
            self._add_processors(reply.applied, failures, durations.processors)
            for event in reply.events:
                self._add_events(event.name or OTHERS, 1 if event.name else event.left_out)

    def logits_read(self, memory: str) -> None:
        """Count a step that read logits; `memory` is "inline", "host" or "device"."""
        with self._lock:
            _increase(self._counts.logits_read, memory, 1)

    def admitted(self, admitted: Admitted, queue_seconds: float) -> None:
        """Record a frame of admissions.

        Args:
            admitted: what its session has admitted since the frame before.
            queue_seconds: how long the frame has waited before its admissions began, or were queued.
        """
        with self._lock:
            counts = self._counts
            if counts.admission_queue is None:
                counts.admission_queue = Times.over(ADMISSION_BOUNDS)
            for seconds in (queue_seconds, *admitted.queue_seconds):
                counts.admission_queue.observe(ADMISSION_BOUNDS, seconds)
            counts.replayed_requests += admitted.replayed_requests
            counts.replayed_tokens += admitted.replayed_tokens
        self._set_changed()

    def requests_refused(self, failures: Iterable[common_pb2.Failure]) -> None:
        """Count requests that a session, or a call of Apply, refused to add."""
        with self._lock:
            for failure in failures:
                _increase(self._counts.refused_requests, failure.error.code, 1)

    def local_frame(self, received_bytes: int, sent_bytes: int) -> None:
        """Count the bytes of a frame of the local transport, and of its reply."""
        with self._lock:
            self._counts.received_bytes += received_bytes
            self._counts.sent_bytes += sent_bytes

    def loads(self) -> SessionLoads:
        """Return the load of the sessions now. `Reporter` adds what others count."""
        sessions = tuple(self._sessions)
        return SessionLoads(
            sessions=len(sessions),
            requests=sum(session.load for session in sessions),
            pending=sum(session.pending for session in sessions),
            waiting=sum(session.pending_admissions.waiting for session in sessions),
        )

    def take(self) -> Counts:
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
        return counts

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
                    counts.received_bytes += steps.received_bytes
                    counts.sent_bytes += steps.sent_bytes
            for name, rows, times in compiled.processors:
                tally = self._tally_of(name)
                tally.times.add(times)
                tally.rows += rows
            for name, count in compiled.events.items():
                self._add_events(name, count)

    def _add_processors(
        self,
        applied: Iterable[common_pb2.RowsApplied],
        failures: Iterable[common_pb2.Failure],
        seconds: Mapping[str, float],
    ) -> None:
        for rows in applied:
            self._tally_of(rows.display_name or rows.processor).rows += rows.rows
        for name, elapsed in seconds.items():
            self._tally_of(name).times.observe(PROCESSOR_BOUNDS, elapsed)
        for failure in failures:
            code = failure.error.code
            # The name of an unknown processor is not used: clients can send any number of such names.
            name = "" if code == common_pb2.ERROR_CODE_NOT_FOUND else failure.error.processor
            _increase(self._tally_of(name).failed, code, 1)

    def _add_events(self, name: str, count: int) -> None:
        events = self._counts.events
        kept = name in events or name in BUILTIN_EVENTS or len(events) < MAX_REPORTED_EVENTS
        _increase(events, name if kept else OTHERS, count)

    def _tally_of(self, name: str) -> ProcessorTally:
        processors = self._counts.processors
        tally = processors.get(name)
        if tally is None:
            if len(processors) >= MAX_REPORTED_NAMES and name not in self._fixed_names:
                name = OTHERS
            tally = processors.setdefault(name, ProcessorTally())
        return tally

    def _set_changed(self) -> None:
        if not self.changed.is_set():
            self.changed.set()


def _times_of(times: dict[str, Times], key: str) -> Times:
    found = times.get(key)
    if found is None:
        found = times[key] = Times.over(STEP_BOUNDS)
    return found


def _increase(counts: dict[Key, int], key: Key, amount: int) -> None:
    if amount:
        counts[key] = counts.get(key, 0) + amount
