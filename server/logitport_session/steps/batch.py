"""The requests of a session and of its steps, and limits of their work."""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING

from logitport.core.drafts import Drafts
from logitport.errors import LimitExceeded, LogitportError, NotFound
from logitport_session.steps.columns import StepLayout
from logitport_session.steps.grouping import Row, Rows, needs_logits
from logitport_session.steps.outcome import FailedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_proto import processing_pb2
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.resources.session_limits import SessionLimits
    from logitport_session.steps.columns import StepColumns
    from logitport_session.steps.compiled_batch import CompiledBatch
    from logitport_session.steps.outcome import StepOutcome


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
        # This object deals with their histories and rows.
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
        """The spans of the requests' admissions, as `Span.context`, of requests that have one."""
        return [request.trace for request in self._requests if request is not None and request.trace is not None]

    def synchronize(self, columns: StepColumns, outcome: StepOutcome) -> dict[ActiveRequest, Drafts]:
        """Bring every history up to date; a request fails if its history cannot be updated.

        Returns:
            The draft tokens of the requests that have any.
        """
        for slot, error in self._unknown.items():
            outcome.failures[slot] = FailedRequest(error, skipped=False)
        drafts: dict[ActiveRequest, Drafts] = {}
        per_request = zip(
            self._own,
            columns.invalid,
            columns.base_lengths,
            columns.history_crcs,
            columns.new_token_ids,
            columns.draft_token_ids,
            self.layout.draft_parents,
            strict=True,
        )
        for request, invalid, base_length, history_crc, new_token_ids, draft_token_ids, parents in per_request:
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
                    drafts[request] = Drafts(draft_token_ids, parents)
        return drafts

    def logits_reading(self, outcome: StepOutcome) -> Rows:
        """The rows of chains that read logits, without failed requests."""
        if not outcome.failures:
            return self._logits_reading
        remaining = (row for row in self._logits_reading if row.request.failure is None)
        return Rows(remaining, greedy=self._logits_reading.greedy)


class PersistentBatch:
    """The requests of a session by slot, and of its last step.

    Args:
        compiled: holds the requests that the compiled core runs; None if all steps run in Python.

    Attributes:
        requests: the requests by slot. Only `put` and `drop` change it.
        fully_compiled: the compiled core, if it runs the chains of all requests; None if not, and without requests.
    """

    def __init__(self, compiled: CompiledBatch | None, max_draft_tokens: int, limits: SessionLimits) -> None:
        self.requests: dict[int, ActiveRequest] = {}
        self.compiled = compiled
        self.fully_compiled: CompiledBatch | None = None
        self._max_draft_tokens = max_draft_tokens
        self._limits = limits
        # The batch of the last step; None after a change that makes it stale.
        self._step: StepBatch | None = None
        self._step_columns: tuple[bytes, ...] = ()

    def put(self, request: ActiveRequest) -> None:
        """Add a request. It replaces an earlier one of its slot."""
        self.requests[request.slot] = request
        try:
            if self.compiled is not None:
                self.compiled.add(request)
        finally:
            self._changed()

    def drop(self, slot: int) -> None:
        """Remove the request of a slot."""
        del self.requests[slot]
        if self.compiled is not None:
            self.compiled.remove(slot)
        self._changed()

    def of_step(self, frame: processing_pb2.Step) -> StepBatch:
        """Return the requests of a step: the last step's if the layout is the same.

        Raises InvalidArgument, LimitExceeded.
        """
        columns = StepLayout.columns(frame)
        if self._step is None or columns != self._step_columns:
            rows = max(len(frame.row_requests), len(frame.slots)) // 4
            check_work(rows, rows, self._limits)  # rows without a chain are work, too
            layout = StepLayout.read(frame, self._max_draft_tokens)
            batch = StepBatch(layout, self.requests, leave_out_compiled=True)
            check_work(batch.work, len(batch.layout.rows), self._limits)
            self._step, self._step_columns = batch, columns
        return self._step

    def follow_failures(self, outcome: StepOutcome) -> None:
        """Leave failed requests to Python, and give those that have recovered back to the compiled core."""
        changed = bool(outcome.failures)
        if self.compiled is not None and (changed or self.compiled.suspended):
            for slot in outcome.failures:
                if (request := self.requests.get(slot)) is not None:
                    self.compiled.suspend(request)
            changed |= self.compiled.resume()
        if changed:
            self._changed()

    def _changed(self) -> None:
        self._step = None
        compiled = self.compiled
        runs_all = compiled is not None and 0 < len(compiled.slots) == len(self.requests)
        self.fully_compiled = compiled if runs_all else None


def check_size(columns: processing_pb2.Step | processing_pb2.RemoveRequests, limits: SessionLimits) -> None:
    """Check the size of a frame: unpacked columns take many times their size. Raises LimitExceeded."""
    size_bytes, limit = columns.ByteSize(), limits.max_step_bytes
    if size_bytes > limit:
        raise LimitExceeded(
            f"columns of {size_bytes} bytes in one frame; the server accepts {limit}: split them into several "
            "frames, and send long histories with AddRequests"
        )


def check_work(work: int, rows: int, limits: SessionLimits) -> None:
    """Check the work of a step: its rows times their chains' lengths, added up. Raises LimitExceeded."""
    limit = limits.max_step_work
    if work > limit:
        raise LimitExceeded(
            f"the work of a step with {rows} rows is {work} (each request's rows or drafts times its processors); "
            f"the server accepts {limit}: chain fewer processors, send fewer rows or drafts in one step, or raise "
            "--max-step-work"
        )


def check_new_ids(columns: StepColumns, batch: StepBatch, limits: SessionLimits) -> None:
    """Check the calls of processors for new ids. Raises LimitExceeded."""
    limit, longest = limits.max_step_work, batch.longest_chain
    if longest * max(map(len, columns.new_token_ids), default=0) * len(batch.chain_lengths) <= limit:
        return  # fast path for the usual step
    counts = [len(token_ids) for token_ids in columns.new_token_ids]
    work = sum(map(operator.mul, counts, batch.chain_lengths))
    if work > limit:
        raise LimitExceeded(
            f"{sum(counts)} new ids for chains of up to {longest} processors are {work} calls in "
            f"one step; the server accepts {limit}: send long histories with AddRequests, or raise --max-step-work"
        )
