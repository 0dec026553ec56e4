"""Activity of servers between two looks at them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.admin import ProcessorTimes, ServerStatus, SessionInfo
    from logitport.errors import LogitportError


class Quantile(NamedTuple):
    """An estimate; `is_above` if the quantile is in the last bucket, above it by an unknown time."""

    seconds: float
    is_above: bool


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> Quantile | None:
    """Estimate a quantile as `histogram_quantile` of Prometheus: linear between the bounds of its bucket.

    Args:
        bounds: upper bounds of the buckets, ascending, without the last one, which has none.
        counts: cumulative counts, one more than bounds. Without any, the result is None.
        part: from 0 to 1, for example 0.99.

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
    """A server at one moment: its status, None with an error if it did not answer, and its sessions."""

    server: str
    status: ServerStatus | None = None
    sessions: Sequence[SessionInfo] = ()
    error: LogitportError | None = None


class ServerActivity(NamedTuple):
    """A server at the latest look, and its steps since the one before; None at the first look, or without an answer."""

    look: Look
    steps_per_second: float | None


class ObservedSession(NamedTuple):
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
    """Activity of servers, of sessions with the most steps first, and of processors with the most time first."""

    servers: Sequence[ServerActivity]
    sessions: Sequence[ObservedSession]
    processors: Sequence[ProcessorActivity]


def compare(earlier: Sequence[Look], later: Sequence[Look]) -> Activity:
    """Compare two looks at the same servers. Without an earlier one, there are no rates.

    The time between them is measured by each server's own clock. A server that was started again counts from its start.
    """
    before = {look.server: look for look in earlier if look.status is not None}
    servers, sessions = [], []
    increases: defaultdict[str, list[tuple[ProcessorTimes, float]]] = defaultdict(list)
    for look in later:
        first = before.get(look.server)
        if look.status is None or first is None or first.status is None:
            servers.append(ServerActivity(look, None))
            sessions += [ObservedSession(look.server, session, None) for session in look.sessions]
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
            ObservedSession(look.server, one, (one.steps - known.get(one.session_id, 0)) / seconds)
            for one in look.sessions
        ]
        times = {one.processor: one for one in start.status.processor_times} if start.status is not None else {}
        for one in look.status.processor_times:
            increases[one.processor].append((_increase(times.get(one.processor), one), seconds))
    sessions.sort(key=lambda one: -(one.steps_per_second or 0.0))
    processors = [found for name, parts in increases.items() if (found := _together(name, parts)) is not None]
    processors.sort(key=lambda one: -one.seconds_per_second)
    return Activity(servers, sessions, processors)


def _increase(first: ProcessorTimes | None, last: ProcessorTimes) -> ProcessorTimes:
    """Return what was added. The server may have dropped the processor in the meantime, and counted it from 0 again."""
    if first is None or first.counts[-1] > last.counts[-1] or first.bounds_seconds != last.bounds_seconds:
        return last
    counts = tuple(new - old for new, old in zip(last.counts, first.counts, strict=True))
    total_seconds = last.total_seconds - first.total_seconds
    return replace(last, counts=counts, rows=last.rows - first.rows, total_seconds=total_seconds)


def _together(processor: str, increases: Sequence[tuple[ProcessorTimes, float]]) -> ProcessorActivity | None:
    """Add up the increases at all servers, each with its seconds. None if the processor was not called."""
    if not any(times.counts[-1] for times, _ in increases):
        return None
    bounds = increases[0][0].bounds_seconds
    same = [times.counts for times, _ in increases if times.bounds_seconds == bounds]  # others are of another version
    counts = [sum(column) for column in zip(*same, strict=True)]
    return ProcessorActivity(
        processor,
        sum(times.counts[-1] / seconds for times, seconds in increases),
        sum(times.rows / seconds for times, seconds in increases),
        quantile(bounds, counts, 0.5),
        quantile(bounds, counts, 0.99),
        sum(times.total_seconds / seconds for times, seconds in increases),
    )
