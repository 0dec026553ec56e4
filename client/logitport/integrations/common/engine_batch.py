"""An engine's requests in one session: admissions, steps, agreement of the ranks, and failures.

Nothing here raises: an error ends requests, never the engine.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.errors import LogitportError
from logitport.integrations.common.admission_time import enter_together
from logitport.integrations.common.circuit_breaker import is_session_error
from logitport.integrations.common.engine_step import force_ends, step_arguments
from logitport.integrations.common.rows import rows_of, selection_of, write_back
from logitport.integrations.common.statuses import all_denied
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from logitport.core.edits import Edits
    from logitport.integrations.common.circuit_breaker import SessionHolder
    from logitport.integrations.common.engine_step import EngineStep, TrackedRequest
    from logitport.integrations.common.ranks import Ranks
    from logitport.session import Handle, PendingStep, StepResult
    from logitport.shipping.request import Request

_log = logging.getLogger(__name__)


class _StepDecision(NamedTuple):
    """Changes to the logits that every rank makes.

    Attributes:
        failures: errors of the step's failed requests, by index.
        row_indices: the rows that were processed.
        edits: edits to apply to them; None if the leader shares processed rows.
        denied: as in `EngineStep`, but with the index of each row's request.
    """

    failures: dict[int, LogitportError]
    row_indices: list[int]
    edits: Edits | None
    denied: dict[int, int]


class EngineBatch:
    """One engine's requests in a session, which is opened for the first request and reopened when lost.

    A hook for an engine overrides the `on_` methods, which are called on the leader.

    Args:
        holder: of the session.
        options: returns the options of the session.
        ranks: the processes that sample the same rows; only the leader has a session.
        engine: its name, for errors.
        admission_seconds: how long a step waits for admissions, after the forward pass; by default `MAX_SECONDS`.

    Attributes:
        sees_accepted_drafts: whether the hook ends the requests in `EngineStep.denied` with accepted drafts.
            Without that, such a request would end as if nothing had failed.
    """

    sees_accepted_drafts = False

    def __init__(
        self,
        holder: SessionHolder,
        options: Callable[[], Mapping[str, Any]],
        ranks: Ranks,
        engine: str,
        admission_seconds: float | None = None,
    ) -> None:
        self._holder = holder
        self._options = options
        self._ranks = ranks
        self._engine = engine
        self._admission_seconds = admission_seconds
        self._live: set[TrackedRequest] = set()
        # Requests with an error, until they are released.
        self._failing: set[TrackedRequest] = set()
        # What `send_changes` sends next.
        self._entering: dict[TrackedRequest, Callable[[], Request]] = {}
        self._leaving: list[Handle] = []
        # Requests that were sent, and that have not finished their first step.
        self._entered: set[TrackedRequest] = set()
        # Counts what makes a plan invalid.
        self._changes = 0
        self._begun: EngineStep | None = None
        # Of that step; None if nothing was sent.
        self._pending: PendingStep | None = None

    def on_failed(self, request: TrackedRequest, error: LogitportError) -> None:
        """A request has failed."""

    def on_admitted(self, request: Any) -> None:
        """The server has admitted a request; its first step was processed. The request fails if this raises."""

    def on_applied(self, step: EngineStep, result: StepResult) -> None:
        """The rows of a step were processed."""

    def error_of_lost(self, handle: Handle, error: LogitportError) -> LogitportError | None:  # noqa: ARG002
        """Return why a request outside the step fails that lost its session; None if it can be admitted again."""
        return error

    def admit(self, request: TrackedRequest, make_request: Callable[[], Request]) -> None:
        """Admit a request, which `send_changes` sends. If it is refused, the request fails in its first step."""
        if self._ranks.is_leader:
            self._changes += 1
            self._live.add(request)
            self._entering[request] = make_request

    def release(self, request: TrackedRequest) -> None:
        """Remove a request that has ended, or that left for good, in `send_changes`."""
        self._changes += 1
        self._live.discard(request)
        self._failing.discard(request)
        self._entering.pop(request, None)
        self._entered.discard(request)
        handle, request.handle = request.handle, None
        if handle is not None and self._holder.session is not None:
            self._leaving.append(handle)

    def send_changes(self, stepped: Collection[TrackedRequest] = ()) -> None:
        """Send the releases and the admissions since the last call, each kind in one frame. Does not wait for replies.

        Those in `stepped`, which begin a step, fail if the session is lost.
        """
        if not self._leaving and not self._entering:
            return
        with self.together():
            if self._leaving:
                leaving, self._leaving = self._leaving, []
                try:
                    if self._holder.session is not None:
                        self._holder.session.remove(*leaving)  # first: their slots are free for the admissions
                except Exception as error:  # noqa: BLE001 - raising would end the engine
                    self._discard_session(error, stepped)
            if self._entering:
                entering, self._entering = self._entering, {}
                self._send_admissions({it: make for it, make in entering.items() if it.error is None}, stepped)

    def together(self) -> AbstractContextManager[None]:
        """Send the changes within the block with the step that begins there, in one write where that is possible."""
        return self._holder.together()

    def _send_admissions(
        self, entering: dict[TrackedRequest, Callable[[], Request]], stepped: Collection[TrackedRequest]
    ) -> None:
        made: dict[TrackedRequest, Request] = {}
        try:
            session = self._holder.ensure_open(self._options)
            for request, make_request in entering.items():
                try:
                    made[request] = make_request()
                except Exception as error:  # noqa: BLE001 - as below
                    self.fail(request, error)
            entered, errors = enter_together(session, made, self._admission_seconds)
            for request, handle in entered.items():
                request.handle = handle
                self._entered.add(request)
            for request, refusal in errors.items():
                self.fail(request, refusal)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail_all(entering, error)
            if is_session_error(error):
                self._discard_session(error, stepped)

    def rewind(self, request: TrackedRequest, length: int) -> None:
        """Rewind a request's history to `length` ids, its prompt included."""
        if self._holder.session is None or request.handle is None:
            return
        try:
            self._holder.session.rewind(request.handle, length)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail(request, error)

    def fail(self, request: TrackedRequest, error: Exception) -> None:
        """End a request: from its next step on, only its ending id can be sampled.

        A request fails once, and keeps its first error.
        """
        if request.error is not None or not self._ranks.is_leader:
            return
        if not isinstance(error, LogitportError):
            _log.error("logitport ends a request, because its hook failed", exc_info=error)
            error = LogitportError(f"the hook failed: {type(error).__name__}: {error}")
        self._changes += 1
        self._failing.add(request)
        request.error = error
        self.on_failed(request, error)

    def fail_all(self, requests: Iterable[TrackedRequest], error: Exception) -> None:
        """Fail all these requests with the same error."""
        for request in requests:
            self.fail(request, error)
            request.handle = None

    def is_steady(self, step: EngineStep) -> bool:
        """Return whether the same rows can be sent again: no request has entered, left or failed since this step.

        The hook then calls `EngineStep.repeat`, and begins the step again. Always false on ranks other than the leader.
        """
        return step.changes == self._changes and step.is_whole and not step.drafts

    def begin(self, step: EngineStep) -> None:
        """Send the sampled ids and return at once: the session computes during the forward pass."""
        if not self._ranks.is_leader:
            return
        self._begun, self._pending = step, None
        try:
            if step.changes == self._changes:
                self._send(step)
            else:
                with self.together():
                    self.send_changes(step.requests)
                    self._plan(step)
                    self._send(step)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error, step.requests)

    def _send(self, step: EngineStep) -> None:
        session = self._holder.session
        if not step.handles or session is None:
            return
        if step.is_whole and not step.drafts:
            self._pending = session.step(step.repeated or dict(zip(step.handles, step.new_ids)))  # noqa: B905
        else:
            self._pending = session.step(**step_arguments(step))

    def _plan(self, step: EngineStep) -> None:
        """Select what is sent of the step: requests that have not failed."""
        for request in step.requests:
            if request.error is None and request.handle is None:  # never sample without its processors
                self.fail(request, LogitportError("the session does not have the request"))
        rows = zip(step.rows, step.row_indices)  # noqa: B905
        step.handles = [request.handle for request in step.requests if request.error is None]
        step.sent_rows = [index for (request, _), index in rows if request.error is None]
        step.selection, step.is_whole = selection_of(step.sent_rows), len(step.handles) == len(step.requests)
        step.changes, step.repeated = self._changes, {}

    def finish(self, step: EngineStep, logits: torch.Tensor) -> Collection[TrackedRequest]:
        """Process the step's rows of float[rows, vocab_size], in place. Returns the step's failed requests.

        Only the ending id of a failed request can be sampled from its rows, and from rows in `EngineStep.denied`.
        """
        if not (self._failing and all(request.failed for request in step.requests)):
            if self._ranks.is_single:
                self._process(step, logits)
                if self._failing:
                    for request in step.requests:
                        request.failed = request.error is not None
            else:
                decision = self._ranks.share(self._decide(step, logits) if self._ranks.is_leader else None)
                self._follow(decision, step, logits)
        return force_ends(step, logits) if self._failing or step.denied else ()

    def _decide(self, step: EngineStep, logits: torch.Tensor) -> _StepDecision:
        row_indices, edits = self._process(step, logits)
        failures = {index: it.error for index, it in enumerate(step.requests) if it.error is not None}
        denied = {row: step.requests.index(request) for row, request in step.denied.items()}
        return _StepDecision(failures, row_indices, edits, denied)

    def _follow(self, decision: _StepDecision, step: EngineStep, logits: torch.Tensor) -> None:
        """Make the changes of a decision, on every rank."""
        if decision.row_indices:
            selection = selection_of(decision.row_indices)
            rows = rows_of(logits, selection)
            if decision.edits is not None:
                apply_edits(decision.edits, rows)
            else:
                self._ranks.share_rows(rows)
            write_back(logits, selection, rows)
        step.denied = {row: step.requests[index] for row, index in decision.denied.items()}
        for index, error in decision.failures.items():
            request = step.requests[index]
            request.error, request.failed = error, True
            self._failing.add(request)

    def _process(self, step: EngineStep, logits: torch.Tensor) -> tuple[list[int], Edits | None]:
        """Process the leader's logits.

        Returns:
            The processed rows, and the edits if every rank, the leader included, must still apply them.
        """
        if self._begun is not step:
            self.begin(step)
        pending, edits = self._pending, None
        self._begun = self._pending = None
        if pending is None:
            return [], None
        try:
            step.denied = {}
            if self._ranks.is_single or pending.reads_logits:
                rows = rows_of(logits, step.selection)
                result = pending.apply(rows, check=False)
                if rows is not logits:
                    write_back(logits, step.selection, rows)
            else:
                edits = pending.edits(check=False)
                result = pending.result  # type: ignore[assignment] # set, because the edits have arrived
            self._holder.breaker.record_success()
            if self._entered:
                self._report_admitted(step, result)
            self.on_applied(step, result)
            if not result.is_plain:
                self._fail_rows(step, result)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error, step.requests)
            return [], None
        return step.sent_rows, edits

    def _report_admitted(self, step: EngineStep, result: StepResult) -> None:
        """Report requests of which this was the first step, unless their admission was refused."""
        for request in self._entered.intersection(step.requests):
            self._entered.discard(request)
            # A refused request has no processors.
            if request.error is None and (request.handle not in result.failures or request.handle.processors):
                try:
                    self.on_admitted(request)
                except Exception as error:  # noqa: BLE001 - raising would end the requests of the whole step
                    self.fail(request, error)

    def _fail_rows(self, step: EngineStep, result: StepResult) -> None:
        """Fail the requests with processors that failed, and those with a row in which every id is denied."""
        if result.failures:
            by_handle = {request.handle: request for request in step.requests}
            for handle, error in result.failures.items():
                self.fail(by_handle[handle], error)
        if result.all_denied_rows:
            at = dict(zip(step.row_indices, step.rows))  # noqa: B905
            for row in result.all_denied_rows:
                index = step.sent_rows[row]
                request, offset = at[index]
                if not offset:
                    self.fail(request, all_denied(self._engine))
                elif self.sees_accepted_drafts:
                    step.denied[index] = request

    def _discard_session(self, error: Exception, stepped: Collection[TrackedRequest] = ()) -> None:
        """Close the failed session. Its requests fail, above all those of the present step."""
        self._changes += 1
        self._leaving.clear()
        self._holder.discard(error)
        self.fail_all([request for request in stepped if request not in self._entering], error)
        for request in self._live - self._entering.keys():
            if request.handle is None:
                continue  # it has failed, or it waits for another session
            is_new = request in self._entered
            why = error if is_new else self.error_of_lost(request.handle, error)  # type: ignore[arg-type]
            if why is not None:
                self.fail(request, why)
            request.handle = None
        self._entered.clear()
