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
        params: its parameters, as the request was admitted; None if they are not known here.
    """

    name: str
    digest: str
    params: Mapping[str, Any] | None = None

    def to_json(self, *, with_params: bool = False) -> dict[str, Any]:
        """Return an object without the fields that are empty."""
        shown = {"name": self.name} | ({"digest": self.digest} if self.digest else {})
        return shown | ({"params": dict(self.params)} if with_params and self.params is not None else {})


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
            on_error="skip".
        skipped: ranges of their positions in the output, (begin, end).
        error: name of the error's class, such as "ProcessorFailed", if the request has failed; "" if not.
        failed_at: position in the output of the first row that the request has failed at; None if it has not failed.
        events: at most 64 events, the oldest first.
        events_left_out: number of further events.
    """

    processors: tuple[ReportedProcessor, ...]
    rows_applied: int = 0
    skipped: tuple[tuple[int, int], ...] = ()
    error: str = ""
    failed_at: int | None = None
    events: tuple[ReportedEvent, ...] = ()
    events_left_out: int = 0

    @property
    def rows_skipped(self) -> int:
        return sum(end - begin for begin, end in self.skipped)

    def to_json(self, *, with_params: bool = False) -> dict[str, Any]:
        """Return the report as an engine's response shows it: an object of plain values, with all attributes.

        The parameters of the processors are left out without `with_params`: some are large, or secret.
        """
        return {
            "processors": [one.to_json(with_params=with_params) for one in self.processors],
            "rows_applied": self.rows_applied,
            "rows_skipped": self.rows_skipped,
            "skipped": [list(one) for one in self.skipped],
            "error": self.error,
            "failed_at": self.failed_at,
            "events": [{**one._asdict(), "values": dict(one.values)} for one in self.events],
            "events_left_out": self.events_left_out,
        }
