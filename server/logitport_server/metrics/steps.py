"""Metrics by transport: the bytes of messages, the number and times of steps, and how long they have waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.metrics.counts import PARTS, TRANSPORTS, Times
from logitport_server.metrics.family import Families, counter, histogram
from logitport_session.telemetry.time_buckets import STEP_BOUNDS

if TYPE_CHECKING:
    from logitport_server.metrics.counts import Counts


class StepMetrics(Families):
    """The metrics with the label `transport`. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._computed = {(transport, part): Times.over(STEP_BOUNDS) for transport in TRANSPORTS for part in PARTS}
        self._queued = {transport: Times.over(STEP_BOUNDS) for transport in TRANSPORTS}
        self._received = dict.fromkeys(TRANSPORTS, 0)
        self._sent = dict.fromkeys(TRANSPORTS, 0)
        self.families = (
            counter("logitport_received_bytes", "Bytes of messages received", lambda: self._received, "transport"),
            counter("logitport_sent_bytes", "Bytes of messages sent", lambda: self._sent, "transport"),
            counter(
                "logitport_steps",
                "Steps answered, by transport",
                lambda: {transport: self._count(transport) for transport in TRANSPORTS},
                "transport",
            ),
            histogram(
                "logitport_step_seconds",
                "Seconds to compute a step, by part: edits, logits, or apply (a call of Apply)",
                STEP_BOUNDS,
                lambda: self._computed,
                "transport",
                "part",
            ),
            histogram(
                "logitport_step_queue_seconds",
                "Seconds that a step, or a part of one, has waited for a thread",
                STEP_BOUNDS,
                lambda: self._queued,
                "transport",
            ),
        )

    def received(self, transport: str, size_bytes: int) -> None:
        """Count a message that the server has received."""
        with self.lock:
            self._received[transport] += size_bytes

    def sent(self, transport: str, size_bytes: int) -> None:
        """Count a message that the server has sent."""
        with self.lock:
            self._sent[transport] += size_bytes

    def add_report(self, counts: Counts) -> None:
        """Add the steps and bytes that a process has reported. Leaves out what is not valid."""
        with self.lock:
            self._received["local"] += max(0, counts.received_bytes)
            self._sent["local"] += max(0, counts.sent_bytes)
            for transport in TRANSPORTS:
                _add_valid(self._queued[transport], counts.queued.get(transport))
                for part, times in counts.computed.get(transport, {}).items():
                    if part in PARTS:
                        _add_valid(self._computed[transport, part], times)

    @property
    def num_steps(self) -> int:
        """Number of steps since the start, with the calls of Apply."""
        with self.lock:
            return sum(map(self._count, TRANSPORTS))

    def _count(self, transport: str) -> int:
        """A step that reads logits is one step in two parts."""
        return sum(sum(self._computed[transport, part].buckets) for part in ("edits", "apply"))


def _add_valid(times: Times, reported: Times | None) -> None:
    if reported is not None and times.accepts(reported):
        times.add(reported)
