"""The reports of a session's requests: which events of the last steps have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core.drafts import Drafts
from logitport.core.row_events import SKIPPED, RequestEvent
from logitport.errors import LogitportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.session.handle import Handle


class StepReports:
    """Adds what replies state of requests to their logs.

    Attributes:
        unconfirmed: requests with an event at a row that may not be sampled from, and the first position of such rows.
            Empty before most steps.
        changes: what the last step has changed in reports: each event at the position, or later, is replaced by these.
    """

    __slots__ = ("changes", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: dict[Handle, int] = {}
        self.changes: dict[Handle, tuple[int, list[RequestEvent]]] = {}

    def confirm(self, handles: Sequence[Handle]) -> None:
        """Drop the events of rows that were not sampled from: a step of these requests begins, with its new ids."""
        self.changes = {}
        for handle in self.unconfirmed.keys() & set(handles):
            first = self.unconfirmed.pop(handle)
            if handle.log is not None:
                position = handle.history.length - handle.history.prompt_length
                kept = handle.log.keep_before(position, handle.history.output_token_ids)
                first = min(first, position)
                self.changes[handle] = first, [event for event in kept if event.position >= first]
        self.unconfirmed = {handle: first for handle, first in self.unconfirmed.items() if not handle.removed}

    def rewound(self, handle: Handle) -> None:
        """Follow a request with a history that was just cut back."""
        if handle.log is not None:
            position = handle.history.length - handle.history.prompt_length
            self.unconfirmed[handle] = min(position, self.unconfirmed.get(handle, position))

    def add(self, events: Sequence[RequestEvent], handles: Sequence[Handle], drafts: Mapping[Handle, Drafts]) -> None:
        """Add the events of a step of these requests. Those of rows that a rewind has removed since are left out.

        Raises:
            LogitportError: an event belongs to another request.
            InvalidArgument: an event is invalid.
        """
        by_slot = {handle.slot: handle for handle in handles}
        for event in events:
            handle = by_slot.get(event.slot)
            if handle is None:
                raise LogitportError(
                    f"the server reported the event {event.event.name!r} of slot {event.slot}, which is not in the step"
                )
            base = handle.history.length - handle.history.prompt_length
            tree, depth = drafts.get(handle, Drafts()), event.position - base
            offset = event.draft_offset or depth
            if not (0 <= depth <= offset <= len(tree) and tree.depth(offset) == depth):
                continue
            handle.reporting().add(event, tree.path(offset) if tree.parents else ())
            self.unconfirmed.setdefault(handle, base)
            self.changes.setdefault(handle, (base, []))[1].append(event)

    def add_failures(
        self,
        failures: Mapping[Handle, LogitportError],
        skipped: Mapping[Handle, LogitportError],
        rows: Sequence[tuple[Handle, int]],
        drafts: Mapping[Handle, Drafts],
    ) -> None:
        """Leave out the rows of requests that failed in a step of these rows and drafts."""
        for handle in (*failures, *skipped):
            handle.history.drop_rows()
        for handle, error in failures.items():
            log = handle.reporting()
            log.error, log.failed_at = type(error).__name__, handle.history.length - handle.history.prompt_length
        entries = []
        for handle, offset in rows if skipped else ():
            if handle in skipped:
                base = handle.history.length - handle.history.prompt_length
                position = base + drafts.get(handle, Drafts()).depth(offset)
                entries.append(RequestEvent(handle.slot, "", position, SKIPPED, offset))
        self.add(entries, list(skipped), drafts)
