"""Counts of a server as plain values: a principal's process reports them, and the front door adds them up.

No module of prometheus_client is imported here: processes of principals do not need it.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

import msgspec

from logitport_proto import common_pb2
from logitport_session.telemetry.time_buckets import PROCESSOR_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

TRANSPORTS = ("unary", "grpc", "local")
PARTS = ("edits", "logits", "apply")
# Memories of the logits that a step has read.
MEMORIES = ("inline", "host", "device")
# Seconds that an admission may wait, behind classes that load slowly.
ADMISSION_BOUNDS = (1e-3, 1e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

# Names of processors in one report, apart from installed ones. Other names share one label.
MAX_REPORTED_NAMES = 256
# Names of events in one report, apart from those of built-ins. Other names share one label.
MAX_REPORTED_EVENTS = 64
# Of one report. Sums stay finite.
_MAX_SECONDS = 1e12


class _Buckets(Protocol):
    """Counts by bucket, and the sum in seconds."""

    @property
    def buckets(self) -> Sequence[int]: ...
    @property
    def seconds(self) -> float: ...


class Times(msgspec.Struct, array_like=True):
    """A histogram of seconds.

    Attributes:
        buckets: the number of times up to each upper bound, but above the one before it; the last are above all bounds.
        seconds: their sum.
    """

    buckets: list[int]
    seconds: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> Self:
        """Return a histogram without times. `bounds` are the upper bounds of its buckets, in seconds."""
        return cls([0] * (len(bounds) + 1))

    def observe(self, bounds: Sequence[float], seconds: float) -> None:
        """Count a time."""
        self.buckets[bisect_left(bounds, seconds)] += 1
        self.seconds += seconds

    def add(self, other: _Buckets) -> None:
        """Add the times of a histogram with the same bounds."""
        self.buckets = [*map(operator.add, self.buckets, other.buckets)]
        self.seconds += other.seconds

    def accepts(self, other: Times) -> bool:
        """Whether a histogram of another process can be added: as many buckets, and nothing is negative."""
        return (
            len(other.buckets) == len(self.buckets)
            and min(other.buckets) >= 0
            and 0.0 <= other.seconds <= _MAX_SECONDS  # excludes NaN, too
        )


class ProcessorTally(msgspec.Struct, array_like=True):
    """What is counted of a processor.

    Attributes:
        rows: the rows that it was applied to.
        times: of the steps in its calls.
        failed: number of requests that failed because of it, by error code.
    """

    rows: int = 0
    times: Times = msgspec.field(default_factory=lambda: Times.over(PROCESSOR_BOUNDS))
    failed: dict[int, int] = {}

    def add(self, other: ProcessorTally) -> None:
        """Add the counts of another process, or of another name with the same label. Invalid ones are left out."""
        self.rows += max(0, other.rows)
        if self.times.accepts(other.times):
            self.times.add(other.times)
        add_by_code(self.failed, other.failed)


class Counts(msgspec.Struct, omit_defaults=True):
    """What the sessions and calls of a principal have counted since the last report.

    Attributes:
        computed: the times to compute steps, by transport and part; see `SessionCounts.step`.
        queued: the times that steps have waited, by transport.
        received_bytes, sent_bytes: of frames of the local transport. The front door counts those that it relays.
        worker_queue: the times that the calls of steps have waited for busy workers; None for no time.
        admission_queue: the times that admissions have waited; None for no time.
        logits_read: steps that read logits, by the memory of the logits.
        replayed_requests, replayed_tokens: see `Admitted`.
        refused_requests: number of refused requests, by error code.
        processors: by display name; see `bounded_labels` for the number of names.
        events: the events that processors have reported, by name.
        loader_hits, loader_misses: loads of shipped processors from the cache of classes, and others.
        worker_logits: calls of workers with logits on the GPU, by the memory they were passed in.
        worker_gpus_refused: workers that failed to use the GPU.
    """

    computed: dict[str, dict[str, Times]] = {}
    queued: dict[str, Times] = {}
    received_bytes: int = 0
    sent_bytes: int = 0
    worker_queue: Times | None = None
    admission_queue: Times | None = None
    logits_read: dict[str, int] = {}
    replayed_requests: int = 0
    replayed_tokens: int = 0
    refused_requests: dict[int, int] = {}
    processors: dict[str, ProcessorTally] = {}
    events: dict[str, int] = {}
    loader_hits: int = 0
    loader_misses: int = 0
    worker_logits: dict[str, int] = {}
    worker_gpus_refused: int = 0

    def add(self, report: Counts) -> None:
        """Add whole numbers, those by memory, and the times of queues. Leaves out what is negative or unknown."""
        for field in msgspec.structs.fields(self):
            if field.type is int:
                setattr(self, field.name, getattr(self, field.name) + max(0, getattr(report, field.name)))
        for own, reported in ((self.logits_read, report.logits_read), (self.worker_logits, report.worker_logits)):
            for memory in MEMORIES:
                own[memory] = own.get(memory, 0) + max(0, reported.get(memory, 0))
        for own_times, times in (
            (self.worker_queue, report.worker_queue),
            (self.admission_queue, report.admission_queue),
        ):
            if own_times is not None and times is not None and own_times.accepts(times):
                own_times.add(times)


class SessionLoads(msgspec.Struct, omit_defaults=True, frozen=True):
    """The open sessions of a process at one moment.

    Attributes:
        sessions: number of open sessions.
        requests: number of requests that they hold or expect.
        pending: number of requests that are being admitted in the background.
        waiting: number of those with an admission that has not begun.
        movable_sessions: number of sessions that can move to another server.
        waiting_calls: number of calls, frames and admissions that wait for a thread.
    """

    sessions: int = 0
    requests: int = 0
    pending: int = 0
    waiting: int = 0
    movable_sessions: int = 0
    waiting_calls: int = 0

    def checked(self) -> SessionLoads:
        """Return the loads of another process, with 0 for a number that is negative."""
        return SessionLoads(*(max(0, number) for number in msgspec.structs.astuple(self)))


def add_by_code(counts: dict[int, int], others: Mapping[int, int]) -> None:
    """Add counts by error code. Leaves out unknown codes, and negative counts."""
    for code, count in others.items():
        if code in _CODES and count >= 0:
            counts[code] = counts.get(code, 0) + count


def code_label(code: int) -> str:
    """The label of an error code, such as "INVALID_ARGUMENT"."""
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")


_CODES = frozenset(common_pb2.ErrorCode.values())
