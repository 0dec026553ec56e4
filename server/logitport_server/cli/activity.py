"""Activity of servers between two looks at them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.admin import ProcessorTimes, ServerStatus, SessionInfo
    from logitport.errors import LogitportError


class Quantile(NamedTuple):
    """An estimate.

    Attributes:
        seconds: the estimate.
        is_above: whether the quantile is above it by an unknown time, because it is in the last bucket.
    """

    seconds: float
    is_above: bool


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> Quantile | None:
    """Estimate a quantile as `histogram_quantile` of Prometheus: linear between the bounds of its bucket.

    Args:
        bounds: upper bounds of the buckets, ascending, without the last one, which has none.
        counts: cumulative counts, one more than bounds.
        part: from 0 to 1, for example 0.99.

    Returns:
        None if nothing was counted.

    Source: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
    """
    if not counts or not counts[-1]:
        return None
    rank = part * counts[-1]
    below, lower = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count >= rank and count > below:
            return Quantile(lower + (bound - lower) * max(0.0, rank - below) / (count - below), is_above=False)
        below, lower = count, bound
    return Quantile(lower, is_above=True)


@dataclass(frozen=True)
class Look:
    """A server at one moment.

    Attributes:
        server: its address.
        status: its status; None if it did not answer.
        sessions: its sessions.
        error: why it did not answer.
    """

    server: str
    status: ServerStatus | None = None
    sessions: Sequence[SessionInfo] = ()
    error: LogitportError | None = None


class ServerActivity(NamedTuple):
    """A server at the latest look, and its steps since the one before; None at the first look, or without an answer."""

    look: Look
    steps_per_second: float | None


class SessionActivity(NamedTuple):
    """A session of a server, and its steps since the look before, or since it was opened; None at the first look."""

    server: str
    session: SessionInfo
    steps_per_second: float | None


@dataclass(frozen=True)
class ProcessorActivity:
    """A processor at all servers together, in the time between two looks.

    Attributes:
        processor: its display name.
        steps_per_second: steps that have called it.
        rows_per_second: rows that it was applied to.
        p50, p99: quantiles of its time in a step.
        seconds_per_second: its time in steps, for each second.
    """

    processor: str
    steps_per_second: float
    rows_per_second: float
    p50: Quantile | None
    p99: Quantile | None
    seconds_per_second: float


@dataclass(frozen=True)
class Activity:
    """Activity of servers between two looks.

    Attributes:
        servers: in the order of the target.
        sessions: those with the most steps first.
        processors: those that were called, the ones with the most time first.
    """

    servers: Sequence[ServerActivity]
    sessions: Sequence[SessionActivity]
    processors: Sequence[ProcessorActivity]


def compare(earlier: Sequence[Look], later: Sequence[Look]) -> Activity:
    """Compare two looks at the same servers. Without an earlier one, there are no rates.

    The time between them is that of each server's own clock. A server that was started again counts from its start.
    """
    before = {look.server: look for look in earlier if look.status is not None}
    servers, sessions = [], []
    changes: defaultdict[str, list[_Change]] = defaultdict(list)
    for look in later:
        first = before.get(look.server)
        if look.status is None or first is None or first.status is None:
            servers.append(ServerActivity(look, None))
            sessions += [SessionActivity(look.server, session, None) for session in look.sessions]
            continue
        was_restarted = look.status.uptime_seconds < first.status.uptime_seconds
        start = Look(look.server) if was_restarted else first
        seconds = look.status.uptime_seconds - (0.0 if was_restarted else first.status.uptime_seconds)
        if seconds <= 0:
            seconds = float("inf")
        steps = look.status.steps - (start.status.steps if start.status is not None else 0)
        servers.append(ServerActivity(look, steps / seconds))
        known = {session.session_id: session.steps for session in start.sessions}
        sessions += [
            SessionActivity(look.server, one, (one.steps - known.get(one.session_id, 0)) / seconds)
            for one in look.sessions
        ]
        times = {one.processor: one for one in start.status.processor_times} if start.status is not None else {}
        for one in look.status.processor_times:
            changes[one.processor].append(_Change.between(times.get(one.processor), one, seconds))
    sessions.sort(key=lambda one: -(one.steps_per_second or 0.0))
    processors = [found for name, parts in changes.items() if (found := _together(name, parts)) is not None]
    processors.sort(key=lambda one: -one.seconds_per_second)
    return Activity(servers, sessions, processors)


@dataclass(frozen=True)
class _Change:
    """Increase of a processor's counts and times at one server."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    steps_per_second: float
    rows_per_second: float
    seconds_per_second: float

    @classmethod
    def between(cls, first: ProcessorTimes | None, last: ProcessorTimes, seconds: float) -> _Change:
        """Return the change. The server may have dropped the processor in the meantime, and counted it from 0 again."""
        if first is not None and (first.counts[-1] > last.counts[-1] or first.bounds_seconds != last.bounds_seconds):
            first = None
        counts, rows, total = last.counts, last.rows, last.total_seconds
        if first is not None:
            counts = tuple(new - old for new, old in zip(last.counts, first.counts, strict=True))
            rows, total = rows - first.rows, total - first.total_seconds
        return cls(last.bounds_seconds, counts, counts[-1] / seconds, rows / seconds, total / seconds)


def _together(processor: str, changes: Sequence[_Change]) -> ProcessorActivity | None:
    """Add up the changes at all servers. None if the processor was not called."""
    if not any(change.counts[-1] for change in changes):
        return None
    bounds = changes[0].bounds
    same = [change.counts for change in changes if change.bounds == bounds]  # others are of another version
    counts = [sum(column) for column in zip(*same, strict=True)]
    return ProcessorActivity(
        processor,
        sum(change.steps_per_second for change in changes),
        sum(change.rows_per_second for change in changes),
        quantile(bounds, counts, 0.5),
        quantile(bounds, counts, 0.99),
        sum(change.seconds_per_second for change in changes),
    )
