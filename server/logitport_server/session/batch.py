"""Maps the rows of a step to requests. Reused while the layout is unchanged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, NotFound
from logitport_server.session.grouping import Row, Rows, needs_logits
from logitport_server.session.outcome import Failed
from logitport_server.turns import pausing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.columns import StepColumns, StepLayout
    from logitport_server.session.outcome import StepOutcome


class StepBatch:
    """The requests of a step. Valid for further steps until a request is added, removed or fails.

    Attributes:
        layout: the layout that the frame gave.
        logits_free: the rows of chains that read no logits on the server in this step.
        has_engine_programs: whether the engine runs programs in any of the chains.
        leaves_out: whether requests are left to the compiled core.
        chain_lengths: length of each request's chain; 0 for an unknown request.
        longest_chain: length of the longest chain.
        work: the rows of each request times its chain's length, added up. Draft tokens without rows count, too,
            because processors see each of them.
    """

    __slots__ = (
        "_logits_reading",
        "_own",
        "_requests",
        "_unknown",
        "chain_lengths",
        "has_engine_programs",
        "layout",
        "leaves_out",
        "logits_free",
        "longest_chain",
        "work",
    )

    def __init__(
        self, layout: StepLayout, active: Mapping[int, ActiveRequest], *, leave_out_compiled: bool = False
    ) -> None:
        """Look up the requests of the layout among the session's active requests, by slot.

        With `leave_out_compiled`, the rows and histories of requests that the compiled core runs are left to it.
        """
        self.layout = layout
        self._unknown: dict[int, LogitportError] = {}
        self._requests: list[ActiveRequest | None] = []
        for slot, generation in zip(layout.slots, layout.generations, strict=True):
            request = active.get(slot)
            if request is None or request.generation != generation:
                self._unknown[slot] = NotFound(
                    f"slot {slot} holds no request of generation {generation}; add the request first"
                )
                request = None
            self._requests.append(request)
        self.chain_lengths = [0 if request is None else len(request.chain) for request in self._requests]
        self.longest_chain = max(self.chain_lengths, default=0)
        self.has_engine_programs = any(request.programs_before for request in self._requests if request is not None)
        rows_of = Counter(place for place, _ in layout.rows)
        self.work = sum(
            max(rows_of[place], draft_count) * length
            for place, (draft_count, length) in enumerate(zip(layout.draft_counts, self.chain_lengths, strict=True))
        )
        greedy = all(request.greedy for request in self._requests if request is not None)
        # Those whose histories and rows this object deals with.
        self._own = [
            None if request is not None and leave_out_compiled and request.is_compiled else request
            for request in self._requests
        ]
        self.leaves_out = self._own != self._requests
        rows = [
            Row(index, request, offset)
            for index, (place, offset) in enumerate(layout.rows)
            if (request := self._own[place]) is not None
        ]
        parts: dict[bool, list[Row]] = {False: [], True: []}
        for row in rows:
            parts[needs_logits(row.request, greedy=greedy)].append(row)
        self.logits_free = Rows(parts[False], greedy=greedy)
        self._logits_reading = Rows(parts[True], greedy=greedy)

    @property
    def traces(self) -> list[object]:
        """The spans in which the requests were admitted, as `Span.context`, of those that have one."""
        return [request.trace for request in self._requests if request is not None and request.trace is not None]

    def synchronize(self, columns: StepColumns, outcome: StepOutcome) -> dict[ActiveRequest, Sequence[int]]:
        """Bring every history up to date; a request fails if its history cannot be updated.

        Returns:
            The draft tokens of the requests that have any.
        """
        for slot, error in self._unknown.items():
            outcome.failures[slot] = Failed(error, skipped=False)
        drafts: dict[ActiveRequest, Sequence[int]] = {}
        per_request = zip(
            self._own,
            columns.invalid,
            columns.base_lengths,
            columns.history_crcs,
            columns.new_token_ids,
            columns.draft_token_ids,
            strict=True,
        )
        for request, invalid, base_length, history_crc, new_token_ids, draft_token_ids in pausing(
            per_request, len(self._requests)
        ):
            if request is None:
                continue
            try:
                if invalid is not None:
                    raise invalid
                request.synchronize(base_length, history_crc, new_token_ids)
            except LogitportError as error:
                outcome.fail(request, error)
            else:
                if draft_token_ids:
                    drafts[request] = draft_token_ids
        return drafts

    def logits_reading(self, outcome: StepOutcome) -> Rows:
        """The rows of chains that read logits, without those of failed requests."""
        if not outcome.failures:
            return self._logits_reading
        remaining = (row for row in self._logits_reading if row.request.failure is None)
        return Rows(remaining, greedy=self._logits_reading.greedy)
