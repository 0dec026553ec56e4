"""The events and failures of one request, from the replies to its steps."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from logitport.core.row_events import MAX_REQUEST_EVENTS, SKIPPED, read_values
from logitport.report import Report, ReportedEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logitport.core.row_events import RequestEvent
    from logitport.report import ReportedProcessor


# Positions with a number of events that were left out. The numbers of the first ones are added up if there are more.
MAX_COUNTED_POSITIONS = 1024


class _LoggedEvent(NamedTuple):
    source: RequestEvent
    event: ReportedEvent | None  # None for an entry that only counts
    position: int
    left_out: int
    draft_offset: int  # of the row, where a tree has several at the position
    path: Sequence[int] = ()  # drafts of a tree before the row, if the engine may still reject them

    def follows(self, output: NDArray[np.int32]) -> bool:
        """Whether the drafts before its row are in the output."""
        before = output[self.position - len(self.path) : self.position]
        return list(before) == list(self.path)


class ReportLog:
    """Events by position in the output. Those at or after a position can be dropped: the engine has cut it off.

    Attributes:
        rows_before: rows that chains of earlier handles of the request were applied to.
        error, failed_at: as in `Report`.
    """

    __slots__ = ("_entries", "_left_out", "_skipped", "error", "failed_at", "rows_before")

    def __init__(self) -> None:
        self.rows_before = 0
        self.error = ""
        self.failed_at: int | None = None
        self._entries: list[_LoggedEvent] = []
        # Events that were left out, by position: a rewind takes back those at positions that it cuts off.
        self._left_out: dict[int, int] = {}
        self._skipped: list[tuple[int, int]] = []  # ranges of positions that stay, ascending

    def add(self, event: RequestEvent, path: Sequence[int] = ()) -> None:
        """Add an event of the present step. Its processor keeps its key. Raises InvalidArgument if it is invalid.

        `path`: the drafts before its row, if it is a row of a tree.
        """
        _, processor, position, (name, values, left_out), draft_offset = event
        reported = ReportedEvent(processor, name, position, read_values(name, values)) if name else None
        # Of a tree, most events are dropped by `keep_before`, which counts the others.
        if reported is not None and not path and self._events() >= MAX_REQUEST_EVENTS:
            reported, left_out = None, left_out + 1
        self._entries.append(_LoggedEvent(event, reported, position, left_out, draft_offset, path))

    def extend(self, later: ReportLog) -> None:
        """Add the events and failures of a log that began after this one."""
        ended = [entry.position for entry in self._entries if entry.source.event == SKIPPED]
        self._entries = [entry for entry in self._entries if entry.source.event != SKIPPED]
        for position in (*ended, *(at for span in later._skipped for at in range(*span))):
            _extend(self._skipped, position)
        for entry in later._entries:
            full = entry.event is not None and self._events() >= MAX_REQUEST_EVENTS
            self._entries.append(entry._replace(event=None, left_out=entry.left_out + 1) if full else entry)
        for position, left_out in later._left_out.items():
            self._leave_out(position, left_out)
        if later.error:
            self.error, self.failed_at = later.error, later.failed_at

    def _events(self) -> int:
        return sum(entry.event is not None for entry in self._entries)

    def _leave_out(self, position: int, count: int) -> None:
        if not count:
            return
        left_out = self._left_out
        left_out[position] = left_out.get(position, 0) + count
        if len(left_out) > MAX_COUNTED_POSITIONS:
            first, second = islice(left_out, 2)
            left_out[first] += left_out.pop(second)

    def keep_before(self, position: int, output: NDArray[np.int32] | None = None) -> list[RequestEvent]:
        """Drop what was reported at this position of the output or later: it is computed again.

        Events of a tree that are not on the path of `output`, int32[length of the output], are dropped, too.

        Returns:
            The events that stay, as they were added.
        """
        if self._left_out and max(self._left_out) >= position:
            self._left_out = {at: left_out for at, left_out in self._left_out.items() if at < position}
        kept: list[_LoggedEvent] = []
        sources: list[RequestEvent] = []
        offsets: dict[int, int] = {}  # of the row at each position: siblings may have the same id
        _cut(self._skipped, position)
        for entry in self._entries:
            if entry.position >= position or not (output is None or entry.follows(output)):
                continue
            if offsets.setdefault(entry.position, entry.draft_offset) != entry.draft_offset:
                continue
            sources.append(entry.source)
            self._leave_out(entry.position, entry.left_out)
            if entry.source.event == SKIPPED:
                _extend(self._skipped, entry.position)
            elif entry.event is not None and len(kept) < MAX_REQUEST_EVENTS:
                kept.append(entry._replace(left_out=0, draft_offset=0, path=()))
            elif entry.event is not None:
                self._leave_out(entry.position, 1)
        self._entries = kept
        return sources

    def report(self, chain: Sequence[tuple[str, ReportedProcessor]], rows_applied: int, position: int) -> Report:
        """Make the report, with the events at this position of the output and earlier ones.

        `chain` has the key of each processor, and `rows_applied` counts the rows of the present handle.
        """
        entries = [entry for entry in self._entries if entry.position <= position]
        names = {key: processor.name for key, processor in chain}
        skipped = self._skipped.copy()
        _cut(skipped, position + 1)
        for entry in entries:
            if entry.source.event == SKIPPED:
                _extend(skipped, entry.position)
        return Report(
            processors=tuple(processor for _, processor in chain),
            rows_applied=self.rows_before + rows_applied,
            skipped=tuple(skipped),
            error=self.error,
            failed_at=self.failed_at,
            events=tuple(
                entry.event._replace(processor=names.get(entry.event.processor, entry.event.processor))
                for entry in entries
                if entry.event is not None
            ),
            events_left_out=sum(self._left_out.values()) + sum(entry.left_out for entry in entries),
        )


def _cut(ranges: list[tuple[int, int]], end: int) -> None:
    """Drop what ascending ranges have at this position and later."""
    while ranges and ranges[-1][1] > end:
        begin, _ = ranges.pop()
        if begin < end:
            ranges.append((begin, end))


def _extend(ranges: list[tuple[int, int]], position: int) -> None:
    """Add a position to ascending ranges, of which none begins after it."""
    if not ranges or ranges[-1][1] < position:
        ranges.append((position, position + 1))
    elif ranges[-1][1] == position:
        ranges[-1] = (ranges[-1][0], position + 1)
