"""`logitport status`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from logitport_server.cli.activity import Quantile, quantile
from logitport_server.cli.display import NOTHING, Column, age, fields, latency, lines_of, number, show, size
from logitport_server.cli.servers import TableCommand, end, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.admin import ProcessorTimes, QuarantineInfo, ServerStatus, WorkerInfo

WORKER_COLUMNS = (
    Column("WORKER"),
    Column("STATE"),
    number("MEMORY"),
    Column("OWNER"),
    Column("PRINCIPAL"),
    Column("TENANT"),
    Column("PROCESSORS", max_cells=80),
)
QUARANTINE_COLUMNS = (
    Column("QUARANTINED", max_cells=60),
    Column("OWNER"),
    Column("PRINCIPAL"),
    Column("TENANT"),
    Column("REASON", max_cells=80),
)
_TIMES_COLUMNS = (
    Column("PROCESSOR", max_cells=60),
    number("STEPS"),
    number("ROWS"),
    number("MEAN"),
    number("P50"),
    number("P99"),
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


def worker_row(worker: WorkerInfo) -> tuple[object, ...]:
    """Return the cells of a worker, for `WORKER_COLUMNS`."""
    return (
        worker.process_id or NOTHING,
        worker.state,
        size(worker.memory_bytes) if worker.memory_bytes else NOTHING,
        worker.owner or NOTHING,
        worker.principal or NOTHING,
        worker.tenant or NOTHING,
        ", ".join(worker.processors) or NOTHING,
    )


def quarantine_row(quarantine: QuarantineInfo) -> tuple[object, ...]:
    """Return the cells of a quarantine, for `QUARANTINE_COLUMNS`."""
    return (
        ", ".join(quarantine.names) or quarantine.digest[:_DIGEST_LENGTH],
        quarantine.owner or NOTHING,
        quarantine.principal or NOTHING,
        quarantine.tenant or NOTHING,
        quarantine.reason,
    )


def latency_of(found: Quantile | None) -> str:
    """Write a quantile; ">" precedes a value above the last bucket."""
    if found is None:
        return NOTHING
    return f"{'>' if found.is_above else ''}{latency(found.seconds)}"


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
    if status.workers:
        yield Text()
        yield from lines_of(WORKER_COLUMNS, map(worker_row, status.workers))
    if status.quarantines:
        yield Text()
        yield from lines_of(QUARANTINE_COLUMNS, map(quarantine_row, status.quarantines))
    if wide and status.processor_times:
        yield Text()
        yield from lines_of(_TIMES_COLUMNS, map(_times_row, status.processor_times))


def _access(status: ServerStatus) -> str:
    return "authenticated callers" if status.requires_authentication else "all callers; authentication is off"


def _code(status: ServerStatus) -> str:
    if not status.accepts_code:
        return "refused"
    where = "sandboxed processes" if status.isolation == "process" else "the server's process"
    return f"accepted{' if it is signed' if status.requires_signatures else ''}, and run in {where}"


def _times_row(times: ProcessorTimes) -> tuple[object, ...]:
    steps = times.counts[-1]
    return (
        times.processor,
        steps,
        times.rows,
        latency(times.total_seconds / steps) if steps else NOTHING,
        *(latency_of(quantile(times.bounds_seconds, times.counts, part)) for part in (0.5, 0.99)),
    )
