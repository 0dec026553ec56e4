"""`logitport top`."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from logitport.errors import ServerUnavailable
from logitport_server.cli.advice import with_flags
from logitport_server.cli.display import NOTHING, Column, age, lines_of, number, rate, row_of, show
from logitport_server.cli.server_activity import Look, ServerActivity, compare
from logitport_server.cli.servers import JsonCommand, ServerResult, call_each, end, print_json
from logitport_server.cli.sessions import ID_LENGTH
from logitport_server.cli.status import QUARANTINE_COLUMNS, WORKER_COLUMNS, latency_of, state_of
from logitport_server.config.option import Flag
from logitport_server.config.units import Seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.client import Client
    from logitport.client.server_client import ServerClient
    from logitport_server.cli.server_activity import Activity, Quantile


def _state(look: Look) -> str:
    if look.status is not None:
        return state_of(look.status)
    return "unreachable" if isinstance(look.error, ServerUnavailable) else "failed"


_SERVER_COLUMNS = (
    Column("SERVER", "look.server"),
    Column("STATE", lambda one: _state(one.look)),
    Column("UPTIME", lambda one: age(one.look.status.uptime_seconds)),
    number("SESSIONS", "look.status.sessions"),
    number("REQUESTS", "look.status.requests"),
    number("STEPS/S", lambda one: rate(one.steps_per_second)),
    number("WORKERS", lambda one: f"{one.look.status.worker_count}/{one.look.status.max_workers}"),
    number("LOST", "look.status.workers_lost"),
    number("QUARANTINED", "look.status.quarantine_count"),
)
_PROCESSOR_COLUMNS = (
    Column("PROCESSOR", "processor", max_cells=60),
    number("STEPS/S", lambda one: rate(one.steps_per_second)),
    number("ROWS/S", lambda one: rate(one.rows_per_second)),
    number("P50", lambda one: latency_of(one.p50)),
    number("P99", lambda one: latency_of(one.p99)),
    number("BUSY", lambda one: f"{one.seconds_per_second:.1%}"),
)
_SESSION_COLUMNS = (
    Column("SESSION", lambda one: one.session.session_id[:ID_LENGTH]),
    Column("SERVER", "server"),
    Column("PRINCIPAL", "session.principal"),
    Column("ENGINE", "session.engine"),
    Column("TRANSPORT", "session.transport"),
    number("REQUESTS", "session.requests"),
    number("STEPS/S", lambda one: rate(one.steps_per_second)),
    Column("LAST STEP", lambda one: age(one.session.last_step_age_seconds)),
)
_ERROR_COLUMNS = (Column("SERVER", "server"), Column("ERROR", lambda look: with_flags(str(look.error)), max_cells=100))
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM
# A server that does not answer must not delay the others for long.
_MIN_TIMEOUT_SECONDS = 2.0
# Lines of the live display without tables: the first line, and a line between two tables.
_MIN_ROWS = 3


class Top(JsonCommand):
    """Watch servers: sessions, steps, times of processors, workers and quarantines. Ctrl-C ends it.

    Rates and times are those of the last interval. Without a terminal, or with --once, it prints one interval and ends.
    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    interval: Seconds = Field(2.0, ge=0.1, le=3600, description="time between two looks at the servers")
    once: Annotated[bool, Flag("--once")] = Field(False, description="print one interval, and end")

    def run(self) -> None:
        console = Console(highlight=False)
        with self.client(max(self.interval, _MIN_TIMEOUT_SECONDS)) as client:
            looks = _look(client)
            if all(look.status is None for look in looks):
                end(ServerResult(look.server, None, look.error) for look in looks)
            if self.once or self.as_json or not console.is_terminal:
                time.sleep(self.interval)
                later = _look(client)
                activity = compare(looks, later)
                if self.as_json:
                    print_json(_described(activity))
                else:
                    show(_lines(activity))
                end(ServerResult(look.server, None, look.error) for look in later)
                return
            with suppress(KeyboardInterrupt):
                self._watch(client, console, looks)

    def _watch(self, client: Client, console: Console, looks: Sequence[Look]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGTERM))  # leaves the terminal as it was
        with Live(console=console, screen=True, auto_refresh=False) as live:
            earlier: Sequence[Look] = ()
            while True:
                activity = compare(earlier, looks)
                header = Text(f"{self.target}  {time.strftime('%H:%M:%S')}  every {self.interval:g} s, Ctrl-C ends")
                live.update(Group(header, Text(), *_lines(activity, console.height - 2)), refresh=True)
                time.sleep(self.interval)
                earlier, looks = looks, _look(client)


def _look(client: Client) -> list[Look]:
    """Look at each server that the target names now."""

    def look(server: ServerClient) -> tuple[Any, Any]:
        return server.status(), list(server.sessions())

    return [
        Look(answer.server, error=answer.error)
        if answer.value is None
        else Look(answer.server, answer.value[0], answer.value[1])
        for answer in call_each(client.servers(), look)
    ]


def _lines(activity: Activity, height: int | None = None) -> Iterator[Text]:
    """Yield the tables, which may have `height` lines together; None for no limit."""
    looks = [one.look for one in activity.servers]
    statuses = [look.status for look in looks if look.status is not None]
    tables: list[tuple[Sequence[Column], Sequence[object]]] = [
        (_SERVER_COLUMNS, activity.servers),
        (_ERROR_COLUMNS, [look for look in looks if look.error is not None]),
        (_PROCESSOR_COLUMNS, activity.processors),
        (QUARANTINE_COLUMNS, [one for status in statuses for one in status.quarantines]),
        (_SESSION_COLUMNS, activity.sessions),
        (WORKER_COLUMNS, [one for status in statuses for one in status.workers]),
    ]
    shown = [(columns, items) for columns, items in tables if items]
    limits = _share(height, [len(items) for _, items in shown])
    for index, ((columns, items), limit) in enumerate(zip(shown, limits, strict=True)):
        if index:
            yield Text()
        yield from lines_of(columns, (_row(columns, item) for item in items[:limit]))
        if len(items) > limit:
            yield Text(f"... {len(items) - limit} more", style="dim")


def _row(columns: Sequence[Column], item: object) -> list[object]:
    if isinstance(item, ServerActivity) and item.look.status is None:
        return [item.look.server, _state(item.look), *(NOTHING for _ in columns[2:])]
    return row_of(columns, item)


def _share(height: int | None, wanted: Sequence[int]) -> list[int]:
    """Divide the lines among tables: each gets some rows, and the first ones get what the others leave.

    A table has two lines more than its wanted rows, and one more if it is cut.
    """
    if height is None:
        return list(wanted)
    granted = [min(rows, _MIN_ROWS) for rows in wanted]
    left = height - sum(granted) - 3 * len(granted)
    for index, rows in enumerate(wanted):
        more = max(0, min(rows - granted[index], left))
        granted[index] += more
        left -= more
    return granted


def _described(activity: Activity) -> dict[str, object]:
    """Return the keys and values of an interval, for JSON."""
    servers = [
        {
            "server": one.look.server,
            "state": _state(one.look),
            "error": None if one.look.error is None else with_flags(str(one.look.error)),
            "steps_per_second": one.steps_per_second,
            **{key: None if one.look.status is None else getattr(one.look.status, key) for key in _SERVER_KEYS},
        }
        for one in activity.servers
    ]
    processors = [
        {
            "processor": one.processor,
            "steps_per_second": one.steps_per_second,
            "rows_per_second": one.rows_per_second,
            "p50_seconds": _seconds(one.p50),
            "p99_seconds": _seconds(one.p99),
            "seconds_per_second": one.seconds_per_second,
        }
        for one in activity.processors
    ]
    sessions = [
        {"server": one.server, "session_id": one.session.session_id, "steps_per_second": one.steps_per_second}
        for one in activity.sessions
    ]
    return {"servers": servers, "processors": processors, "sessions": sessions}


_SERVER_KEYS = (
    "uptime_seconds",
    "sessions",
    "requests",
    "steps",
    "worker_count",
    "workers_lost",
    "quarantine_count",
)


def _seconds(found: Quantile | None) -> float | None:
    return None if found is None else found.seconds
