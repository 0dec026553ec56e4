"""The report of a request: which processors ran, on how many rows, and what they reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReportedProcessor(NamedTuple):
    """A processor of the chain.

    Attributes:
        name: a built-in's or installed processor's name, a registered name, or the class name of a shipped one.
        digest: of a registered or shipped one; "" for another.
    """

    name: str
    digest: str


class ReportedEvent(NamedTuple):
    """An event that a processor has reported with `RowEdits.event`.

    Attributes:
        processor: name of the processor, as in `ReportedProcessor`.
        name: what happened, such as "budget_hit".
        position: index in the output of the id that was sampled at that row.
        values: details: integers and short text.
    """

    processor: str
    name: str
    position: int
    values: Mapping[str, int | str]


@dataclass(frozen=True)
class Report:
    """What the chain of one request has done so far. `Handle.report` makes it.

    Rows of draft tokens that the engine has rejected do not count, nor do events of output that it has cut off.

    Attributes:
        processors: the chain, in execution order.
        rows_applied: number of rows that the chain was applied to.
        rows_skipped: number of rows that stayed unchanged, because a processor failed and the request has
            on_error="skip"; with draft tokens, also rows that were not sampled from.
        error: name of the error's class, such as "ProcessorFailed", if the request has failed; "" if not.
        events: at most 64 events, the oldest first.
        events_left_out: number of further events.
    """

    processors: tuple[ReportedProcessor, ...]
    rows_applied: int = 0
    rows_skipped: int = 0
    error: str = ""
    events: tuple[ReportedEvent, ...] = ()
    events_left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as an engine's response shows it: an object of plain values, with all attributes."""
        return {
            "processors": [
                {"name": one.name, "digest": one.digest} if one.digest else {"name": one.name}
                for one in self.processors
            ],
            "rows_applied": self.rows_applied,
            "rows_skipped": self.rows_skipped,
            "error": self.error,
            "events": [{**one._asdict(), "values": dict(one.values)} for one in self.events],
            "events_left_out": self.events_left_out,
        }
