"""Who takes part in a step, and whose its rows are: found once for all the steps of one layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import LogitportError, UnknownRequest
from logitport_server.session.grouping import Row, Rows, needs_logits
from logitport_server.session.outcome import Failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.columns import StepColumns, StepLayout
    from logitport_server.session.outcome import StepOutcome


class StepBatch:
    """The requests of a step. Good for further steps until a request comes, goes or fails.

    Attributes:
        layout: what the frame said.
        logits_free: the rows whose chains read no logits in such a step.
    """

    __slots__ = ("_reading", "_requests", "_strangers", "layout", "logits_free")

    def __init__(self, layout: StepLayout, held: Mapping[int, ActiveRequest]) -> None:
        """Look up the requests of the layout among those that the session holds, by slot."""
        self.layout = layout
        self._strangers: dict[int, LogitportError] = {}
        self._requests: list[ActiveRequest | None] = []
        for slot, generation in zip(layout.slots, layout.generations, strict=True):
            request = held.get(slot)
            if request is None or request.generation != generation:
                self._strangers[slot] = UnknownRequest(
                    f"slot {slot} holds no request of generation {generation}; add the request first"
                )
                request = None
            self._requests.append(request)
        rows = [
            Row(index, request, offset)
            for index, (place, offset) in enumerate(layout.rows)
            if (request := self._requests[place]) is not None
        ]
        greedy = all(request.greedy for request in self._requests if request is not None)
        parts: dict[bool, list[Row]] = {False: [], True: []}
        for row in rows:
            parts[needs_logits(row.request, greedy=greedy)].append(row)
        self.logits_free, self._reading = Rows(parts[False], greedy=greedy), Rows(parts[True], greedy=greedy)

    def synchronise(self, columns: StepColumns, outcome: StepOutcome) -> dict[ActiveRequest, Sequence[int]]:
        """Bring every history up to date; what cannot be fails its request. Returns the drafts of those with any."""
        for slot, error in self._strangers.items():
            outcome.failures[slot] = Failed(error, skipped=False)
        drafts: dict[ActiveRequest, Sequence[int]] = {}
        for request, invalid, base_length, history_crc, new_token_ids, draft_token_ids in zip(
            self._requests,
            columns.invalid,
            columns.base_lengths,
            columns.history_crcs,
            columns.new_token_ids,
            columns.draft_token_ids,
            strict=True,
        ):
            if request is None:
                continue
            try:
                if invalid is not None:
                    raise invalid
                request.synchronise(base_length, history_crc, new_token_ids)
            except LogitportError as error:
                outcome.fail(request, error)
            else:
                if draft_token_ids:
                    drafts[request] = draft_token_ids
        return drafts

    def reading(self, outcome: StepOutcome) -> Rows:
        """The rows whose chains read logits, of requests that have not failed."""
        if not outcome.failures:
            return self._reading
        alive = (row for row in self._reading if row.request.failure is None)
        return Rows(alive, greedy=self._reading.greedy)
