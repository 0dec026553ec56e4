"""An engine's requests at the service. Nothing here raises: an error ends requests, never the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport.integrations.common import environment
from logitport.integrations.common.admission_time import AdmissionTime, begin_together
from logitport.integrations.common.circuit_breaker import SessionHolder, is_session_error
from logitport.integrations.common.rows import rows_of
from logitport.integrations.common.statuses import all_denied
from logitport.integrations.vllm.mailbox import Mailbox, record
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from logitport.core.edits import Edits
    from logitport.integrations.common.ranks import Ranks
    from logitport.session import Handle, PendingRequest, PendingStep
    from logitport.shipping.request import Request


@dataclass(eq=False)
class RemoteRequest:
    """One request of the engine that has processors.

    Attributes:
        request_id: vLLM's name for it, or "".
        prompt_length: number of prompt ids.
        ending_id: the id that it gets once it has failed.
        handle: at the service; None before admission, and on all ranks but the leader.
        pending: its admission at the service, until that has ended.
        error: why it failed; set on the leader.
        failed: whether the failure was sent to every rank.
    """

    request_id: str
    prompt_length: int
    ending_id: int
    handle: Handle | None = None
    pending: PendingRequest | None = None
    error: Exception | None = None
    failed: bool = False

    @property
    def known_outputs(self) -> int:
        """Return how many output ids the service has."""
        return 0 if self.handle is None else len(self.handle.history) - self.prompt_length


@dataclass
class RemoteStep:
    """Requests of one step, and their rows in the engine's logits.

    Attributes:
        new_ids: ids that joined each request; set on the leader.
        rows: each row's request, and how many draft tokens precede the row.
        row_indices: each row's index in the engine's logits.
        drafts: draft tokens of the requests that have any.
    """

    new_ids: dict[RemoteRequest, Sequence[int]] = field(default_factory=dict)
    rows: list[tuple[RemoteRequest, int]] = field(default_factory=list)
    row_indices: list[int] = field(default_factory=list)
    drafts: dict[RemoteRequest, Sequence[int]] = field(default_factory=dict)

    def add(self, request: RemoteRequest, new_ids: Sequence[int], index: int) -> None:
        """Add a request with one row."""
        self.new_ids[request] = new_ids
        self.rows.append((request, 0))
        self.row_indices.append(index)


@dataclass(frozen=True)
class _StepDecision:
    """Changes to the logits that every rank makes.

    Attributes:
        failed: indices of the step's failed requests.
        row_indices: the rows that were processed.
        edits: edits to apply to them; None if the leader shares processed rows.
    """

    failed: list[int]
    row_indices: list[int]
    edits: Edits | None


class RemoteBatch:
    """One engine's requests at the service, in a session that is opened for the first request and reopened when lost.

    Args:
        options: of the session.
        ranks: the processes that sample the same rows; only the leader has a session.
        instance_id: vLLM's name of the engine, the same in all of its processes; "" if unknown.
    """

    def __init__(self, options: Mapping[str, Any], ranks: Ranks, instance_id: str = "") -> None:
        self._options = options
        self._ranks = ranks
        self._holder = SessionHolder(environment.client)
        self._mailbox = Mailbox(instance_id)
        self._live: set[RemoteRequest] = set()
        # What `send_changes` sends next.
        self._entering: dict[RemoteRequest, Callable[[], Request]] = {}
        self._leaving: list[Handle] = []
        self._begun: tuple[RemoteStep, list[int], PendingStep | None] | None = None

    def admit(self, request: RemoteRequest, make_request: Callable[[], Request]) -> None:
        """Admit a request to the service, beginning in `send_changes`. If that fails, it fails in its first step."""
        if self._ranks.is_leader:
            self._live.add(request)
            self._entering[request] = make_request

    def release(self, request: RemoteRequest) -> None:
        """Remove a request that has ended, or that left for good, in `send_changes`."""
        self._live.discard(request)
        self._entering.pop(request, None)
        handle, request.handle = request.handle, None
        pending, request.pending = request.pending, None
        if self._holder.session is None:
            return
        try:
            if pending is not None:
                pending.cancel()
            elif handle is not None:
                self._leaving.append(handle)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error)

    def send_changes(self) -> None:
        """Send the releases and the admissions since the last call: each kind in one frame, because each frame waits.

        The front end has admitted the requests once, so that this is fast.
        """
        leaving, self._leaving = self._leaving, []
        try:
            if leaving and self._holder.session is not None:
                self._holder.session.remove(*leaving)  # first: their slots are free for the admissions
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error)
        entering, self._entering = self._entering, {}
        entering = {request: make for request, make in entering.items() if request.error is None}
        if entering:
            self._begin_admissions(entering)

    def _begin_admissions(self, entering: dict[RemoteRequest, Callable[[], Request]]) -> None:
        made: dict[RemoteRequest, Request] = {}
        try:
            session = self._holder.ensure_open(lambda: self._options)
            for request, make_request in entering.items():
                try:
                    made[request] = make_request()
                except Exception as error:  # noqa: BLE001 - as below
                    self.fail(request, error)
            begun, errors = begin_together(session, made)
            for request, pending in begun.items():
                request.pending = pending
            for request, refusal in errors.items():
                self.fail(request, refusal)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail_all(entering, error)
            if is_session_error(error):
                self._discard_session(error)

    def rewind(self, request: RemoteRequest, outputs: int) -> None:
        """Rewind a request to `outputs` output ids."""
        if self._holder.session is None or request.handle is None:
            return
        try:
            self._holder.session.rewind(request.handle, request.prompt_length + outputs)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail(request, error)

    def fail(self, request: RemoteRequest, error: Exception) -> None:
        """Have vLLM answer the request with the error, and force its ending id from now on.

        A request fails once, and keeps its first error.
        """
        if request.error is None:
            request.error = error
            failure = record(
                error,
                request_id=request.request_id,
                output_length=request.known_outputs,
                forced_token_id=request.ending_id,
            )
            self._mailbox.post(failure)

    def begin(self, step: RemoteStep) -> None:
        """Send the sampled ids and return at once: the service computes during the forward pass."""
        if not self._ranks.is_leader:
            return
        self.send_changes()
        self._end_admissions(step)
        kept = [index for index, (request, _) in enumerate(step.rows) if request.error is None]
        self._begun = (step, kept, None)
        try:
            if kept and self._holder.session is not None:
                self._begun = (step, kept, self._holder.session.step(**_step_arguments(step, kept)))
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error)

    def _end_admissions(self, step: RemoteStep) -> None:
        """Wait for the admissions of the step's requests. One that takes too long fails its request."""
        if self._holder.session is None:
            return
        limited = AdmissionTime(self._holder.session)
        for request in step.new_ids:
            pending, request.pending = request.pending, None
            if pending is None:
                continue
            try:
                request.handle = limited.result(pending)
            except Exception as error:  # noqa: BLE001 - raising would end the engine
                self.fail(request, error)
                if is_session_error(error):
                    self._discard_session(error)
                    return

    def finish(self, step: RemoteStep, logits: torch.Tensor) -> None:
        """Process the step's rows of float[rows, vocab_size], in place."""
        if not all(request.failed for request in step.new_ids):
            decision = self._ranks.share(self._decision(step, logits) if self._ranks.is_leader else None)
            if not self._ranks.is_single and decision.row_indices:
                with rows_of(logits, decision.row_indices) as rows:
                    if decision.edits is not None:
                        apply_edits(decision.edits, rows)
                    else:
                        self._ranks.share_rows(rows)
            requests = list(step.new_ids)
            for index in decision.failed:
                requests[index].failed = True
        failed = {index: request for index, (request, _) in zip(step.row_indices, step.rows) if request.failed}  # noqa: B905
        if failed:  # only the ending id of each request can be sampled
            logits[list(failed)] = float("-inf")
            logits[list(failed), [request.ending_id for request in failed.values()]] = 0.0

    def _decision(self, step: RemoteStep, logits: torch.Tensor) -> _StepDecision:
        if self._begun is None or self._begun[0] is not step:
            self.begin(step)
        _, kept, pending = self._begun or (step, [], None)
        self._begun = None
        row_indices = [step.row_indices[row] for row in kept]
        edits = None
        try:
            if pending is not None:
                edits = self._process(pending, step, row_indices, logits)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._discard_session(error)
        failed = [index for index, request in enumerate(step.new_ids) if request.error is not None]
        return _StepDecision(
            failed, row_indices if pending is not None and self._holder.session is not None else [], edits
        )

    def _process(
        self, pending: PendingStep, step: RemoteStep, row_indices: list[int], logits: torch.Tensor
    ) -> Edits | None:
        """Process the leader's logits. Returns edits if every rank, the leader included, must still apply them."""
        edits = None
        if self._ranks.is_single or any(request.handle and request.handle.reads_logits for request in step.new_ids):
            with rows_of(logits, row_indices) as rows:
                result = pending.apply(rows, check=False)
        else:
            edits = pending.edits(check=False)
            result = pending.result  # type: ignore[assignment] # set, because the edits have arrived
        self._holder.record_success()
        if result.failures:
            by_handle = {request.handle: request for request in step.new_ids}
            for handle, error in result.failures.items():
                self.fail(by_handle[handle], error)
        if result.all_denied_rows:
            at = dict(zip(step.row_indices, step.rows))  # noqa: B905
            for row in result.all_denied_rows:
                request, offset = at[row_indices[row]]
                if not offset:  # a row after draft tokens may never be sampled from
                    self.fail(request, all_denied("vLLM"))
        return edits

    def _discard_session(self, error: Exception) -> None:
        """Close the failed session and fail all its requests, but not those that were never sent to it."""
        self._leaving.clear()
        self.fail_all(self._live - self._entering.keys(), error)
        self._holder.discard(error)

    def fail_all(self, requests: Iterable[RemoteRequest], error: Exception) -> None:
        """Fail all these requests with the same error."""
        for request in requests:
            self.fail(request, error)
            request.handle = request.pending = None


def _step_arguments(step: RemoteStep, kept: list[int]) -> dict[str, Any]:
    """Return the arguments of `Session.step` for the rows that are sent."""
    new_ids = {request.handle: ids for request, ids in step.new_ids.items() if request.error is None}
    rows = [step.rows[index] for index in kept]
    drafts = {request.handle: ids for request, ids in step.drafts.items() if request.error is None}
    return {
        "new_token_ids": new_ids,
        "rows": [(request.handle, offset) for request, offset in rows] if drafts else None,
        "drafts": drafts,
    }
