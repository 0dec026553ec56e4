"""`logitport status`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from logitport_server.cli.display import NOTHING, Column, age, fields, latency, lines_of, number, row_of, show, size
from logitport_server.cli.server_activity import Quantile, quantile
from logitport_server.cli.servers import TableCommand, end, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.admin import ServerStatus


def latency_of(found: Quantile | None) -> str:
    """Write a quantile; ">" precedes a value above the last bucket."""
    if found is None:
        return NOTHING
    return f"{'>' if found.is_above else ''}{latency(found.seconds)}"


WORKER_COLUMNS = (
    Column("WORKER", lambda worker: worker.process_id or None),
    Column("STATE", "state"),
    number("MEMORY", lambda worker: size(worker.memory_bytes) if worker.memory_bytes else None),
    Column("OWNER", "owner"),
    Column("PRINCIPAL", "principal"),
    Column("TENANT", "tenant"),
    Column("PROCESSORS", lambda worker: ", ".join(worker.processors), max_cells=80),
)
QUARANTINE_COLUMNS = (
    Column("QUARANTINED", lambda one: ", ".join(one.names) or one.digest[:_DIGEST_LENGTH], max_cells=60),
    Column("OWNER", "owner"),
    Column("PRINCIPAL", "principal"),
    Column("TENANT", "tenant"),
    Column("REASON", "reason", max_cells=80),
)
_TIMES_COLUMNS = (
    Column("PROCESSOR", "processor", max_cells=60),
    number("STEPS", lambda times: times.counts[-1]),
    number("ROWS", "rows"),
    number("MEAN", lambda times: latency(times.total_seconds / times.counts[-1]) if times.counts[-1] else None),
    number("P50", lambda times: latency_of(quantile(times.bounds_seconds, times.counts, 0.5))),
    number("P99", lambda times: latency_of(quantile(times.bounds_seconds, times.counts, 0.99))),
)
_DIGEST_LENGTH = 12


class Status(TableCommand):
    """Show the state of each server: sessions, limits, workers and quarantines; with --wide the times of processors.

    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    def run(self) -> None:
        answers = self.call(lambda server: server.status())
        if self.as_json:
            print_json(
                [
                    {"server": one.server, "error": one.reason}
                    if one.value is None
                    else {"server": one.server, **asdict(one.value)}
                    for one in answers
                ]
            )
        else:
            for index, answer in enumerate(one for one in answers if one.value is not None):
                if index:
                    print()  # noqa: T201
                show(_lines(answer.server, answer.value, wide=self.wide))
        end(answers)


def state_of(status: ServerStatus) -> str:
    """Return "serving" or "draining"."""
    return "draining" if status.draining else "serving"


def _lines(server: str, status: ServerStatus, *, wide: bool) -> Iterator[Text]:
    yield from fields(
        [
            ("server", server),
            ("state", state_of(status)),
            ("uptime", age(status.uptime_seconds)),
            ("version", f"{status.version}, Python {status.python_version}, {status.device}"),
            ("sessions", f"{status.sessions} of {status.max_sessions}, {status.movable_sessions} can move"),
            ("requests", f"{status.requests}, {status.pending_requests} being admitted"),
            ("steps", str(status.steps)),
            ("access", _access(status)),
            ("code", _code(status)),
            ("programs", "accepted" if status.accepts_programs else "refused"),
            (
                "processors",
                f"{status.installed_processors} installed, {status.registered_processors} of "
                f"{status.max_registered_processors} registered",
            ),
            ("loads", f"{status.loader_misses} unpickled, {status.loader_hits} loaded already"),
            ("workers", f"{status.worker_count} of {status.max_workers}, {status.workers_lost} lost"),
            ("quarantines", str(status.quarantine_count)),
        ]
    )
    times = status.processor_times if wide else ()
    tables = (WORKER_COLUMNS, status.workers), (QUARANTINE_COLUMNS, status.quarantines), (_TIMES_COLUMNS, times)
    for columns, items in tables:
        if items:
            yield Text()
            yield from lines_of(columns, (row_of(columns, item) for item in items))


def _access(status: ServerStatus) -> str:
    return "authenticated callers" if status.requires_authentication else "all callers; authentication is off"


def _code(status: ServerStatus) -> str:
    if not status.accepts_code:
        return "refused"
    where = "sandboxed processes" if status.isolation == "process" else "the processes of their callers"
    return f"accepted{' if it is signed' if status.requires_signatures else ''}, and run in {where}"
