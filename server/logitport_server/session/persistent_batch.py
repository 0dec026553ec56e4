"""The requests of a session, from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.session.batch import StepBatch
from logitport_server.session.columns import StepLayout
from logitport_server.session.step_limits import check_work

if TYPE_CHECKING:
    from logitport_proto import processing_pb2
    from logitport_server.config import ServerConfig
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.compiled_batch import CompiledBatch
    from logitport_server.session.outcome import StepOutcome


class PersistentBatch:
    """The requests of a session by slot, and those of its last step.

    Args:
        compiled: holds the requests that the compiled core runs; None if all steps run in Python.
        max_draft_tokens: of a request in a step.
        limits: the server's options.

    Attributes:
        requests: the requests by slot. Only `put` and `drop` change it.
        compiled: as the argument.
        longest_chain: length of the longest chain since the batch was last empty.
    """

    def __init__(self, compiled: CompiledBatch | None, max_draft_tokens: int, limits: ServerConfig) -> None:
        self.requests: dict[int, ActiveRequest] = {}
        self.compiled = compiled
        self.longest_chain = 0
        self._max_draft_tokens = max_draft_tokens
        self._limits = limits
        # The batch of the last step; None after a change that makes it stale.
        self._step: StepBatch | None = None
        self._step_columns: tuple[bytes, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled core runs the chains of all requests."""
        compiled = self.compiled
        return compiled is not None and len(compiled.slots) == len(self.requests)

    def put(self, request: ActiveRequest) -> None:
        """Add a request. It takes the place of an earlier one of its slot."""
        self.requests[request.slot] = request
        if self.compiled is not None:
            self.compiled.add(request)
        self.longest_chain = max(self.longest_chain, len(request.chain))
        self._step = None

    def drop(self, slot: int) -> None:
        """Remove the request of a slot."""
        del self.requests[slot]
        if self.compiled is not None:
            self.compiled.remove(slot)
        if not self.requests:
            self.longest_chain = 0
        self._step = None

    def of_step(self, frame: processing_pb2.Step) -> StepBatch:
        """Return the requests of a step: those of the last one if the layout is the same.

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
        if self.compiled is not None:
            for slot in outcome.failures:
                if (request := self.requests.get(slot)) is not None:
                    self.compiled.suspend(request)
            changed |= self.compiled.resume()
        if changed:
            self._step = None
