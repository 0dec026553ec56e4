"""Admits the requests of a session, before the reply or in the background."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, LogitportError, to_proto
from logitport_proto import common_pb2
from logitport_server import defects
from logitport_server.principals import Party
from logitport_server.session.admission import Admission, check_limits
from logitport_server.session.admission_trace import AdmissionTrace
from logitport_server.session.checked_calls import CheckedCalls
from logitport_server.session.engine_programs import describe_chain

if TYPE_CHECKING:
    import torch

    from logitport.core.memory_account import MemoryAccount
    from logitport_proto import processing_pb2
    from logitport_server.config import ServerConfig
    from logitport_server.principals import Principal
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.hosting import HostedProcessors
    from logitport_server.session.lending import Lending
    from logitport_server.session.pending_admissions import PendingAdmissions
    from logitport_server.session.persistent_batch import PersistentBatch


@dataclass(slots=True)
class Admitted:
    """Counts of a session's admissions.

    Attributes:
        replayed_requests: requests that came with ids that were generated before, or again for their slot: after a
            lost connection, a move, or a difference of histories.
        replayed_tokens: the ids of their histories.
        queue_seconds: how long each admission in the background has waited before it began.
    """

    replayed_requests: int = 0
    replayed_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)


class SessionAdmissions:
    """Admits requests to the batch of a session.

    Admissions in the background run on other threads, where they use `HostedProcessors` and nothing else of the
    session; `add` takes their results.

    Args:
        engine: the message that opened the session.
        batch: gets the admitted requests.
        pending: the admissions in the background.
        processors: hosts the processors of their chains.
        lending: lends the memory that the session shares.
        principal: the caller that opened the session.
        device: where logits are processed that are not sent to workers.
        limits: the server's options.
        account: charged with the memory of the requests.

    Attributes:
        trace: the span of the session's opening, as `Span.context`.
        first_refused: fields for log records about the first request that the last `add` has refused; {} for none.
    """

    def __init__(
        self,
        engine: processing_pb2.OpenSession,
        batch: PersistentBatch,
        pending: PendingAdmissions,
        processors: HostedProcessors,
        lending: Lending,
        principal: Principal,
        device: torch.device,
        limits: ServerConfig,
        account: MemoryAccount,
    ) -> None:
        self._account = account
        self.trace: object = None
        self.first_refused: dict[str, str] = {}
        self._engine = engine
        self._batch = batch
        self._pending = pending
        self._processors = processors
        self._lending = lending
        self._principal = principal
        self._device_name = str(device)
        self._limits = limits
        self._admitted = Admitted()

    def add(self, frame: processing_pb2.AddRequests, reply: processing_pb2.RequestsAdded) -> None:
        """Admit requests. A refused request does not affect the others.

        A frame for admissions in the background also reports those that have ended.
        """
        self.first_refused = {}
        reads_logits, pending = bytearray(), bytearray()
        shared = CheckedCalls()
        for addition in frame.requests:
            request, in_background = None, False
            trace = AdmissionTrace(addition, self.trace)
            with trace:
                try:
                    admission = self._check(addition)
                    in_background = frame.in_background and self._may_continue_in_background(admission, addition)
                    host, seconds = self._processors.host, self._limits.load_timeout_seconds
                    if in_background:
                        admission.charge(self._account)  # it may wait for others
                        load = partial(admission.load, host, seconds, in_background=True, account=self._account)
                        self._pending.begin(admission, load, trace)
                    else:
                        admission.load(host, seconds, shared=shared, account=self._account)
                        request = self._finish(admission, trace)
                except LogitportError as error:
                    reply.failures.append(common_pb2.Failure(slot=addition.slot, error=to_proto(error)))
                    self._note_refused(trace, error)
            chain = reply.chains.add()
            if request is not None:
                describe_chain(request, chain)
                self._join(request, reply)
            reads_logits.append(request is not None and request.reads_logits)
            pending.append(in_background)
        reply.reads_logits = bytes(reads_logits)
        if any(pending):
            reply.pending = bytes(pending)
        if frame.in_background:
            self._report_ended(reply)

    def take_admitted(self) -> Admitted:
        """Return what was admitted since the last call."""
        admitted, self._admitted = self._admitted, Admitted()
        return admitted

    def _check(self, addition: processing_pb2.SlottedRequest) -> Admission:
        """Check a request without its processors. Raises LogitportError."""
        previous = self._request_at(addition.slot, addition.generation)
        check_limits(addition.request, self._limits)
        caller = Party(self._principal.name, addition.request.tenant)
        return Admission(addition, self._engine, previous, self._device_name, caller)

    def _request_at(self, slot: int, generation: int) -> ActiveRequest | None:
        """The request of this slot and generation, if there is one. Raises InvalidArgument."""
        if not 0 <= slot < self._engine.max_requests:
            raise InvalidArgument(
                f"slot {slot} is outside [0, {self._engine.max_requests}), the slots of this session; remove requests "
                "that have ended, or raise --max-requests-per-session"
            )
        request = self._batch.requests.get(slot)
        occupant = self._pending.generation_at(slot) if request is None else request.generation
        if occupant not in (None, generation):
            raise InvalidArgument(f"slot {slot} holds generation {occupant}; remove that request first")
        return request

    def _may_continue_in_background(self, admission: Admission, addition: processing_pb2.SlottedRequest) -> bool:
        """Whether the admission of a request may take long, and no step needs the request already."""
        return (
            addition.slot not in self._batch.requests
            and self._processors.may_take_long_to_admit(addition.request)
            and self._pending.can_begin(admission)
        )

    def _finish(self, admission: Admission, trace: AdmissionTrace) -> ActiveRequest:
        request = admission.finish()
        request.trace = trace.span
        trace.admitted(replaces=admission.slot in self._batch.requests, tokens=len(request.history))
        return request

    def _join(self, request: ActiveRequest, reply: processing_pb2.RequestsAdded) -> None:
        """Add an admitted request to the batch."""
        self._pending.cancel(request.slot, request.generation)
        length = request.history.length
        if length > request.history.prompt_length or request.slot in self._batch.requests:
            self._admitted.replayed_requests += 1
            self._admitted.replayed_tokens += length
        self._batch.put(request)
        if self._lending.admitted(request):
            reply.regions_retired = True

    def _report_ended(self, reply: processing_pb2.RequestsAdded) -> None:
        """Report the admissions that have ended in the background. Admitted requests join the batch."""
        for pending in self._pending.take_ended():
            ended = reply.ended.add(slot=pending.admission.slot, generation=pending.admission.generation)
            self._admitted.queue_seconds.append(pending.queue_seconds)
            with pending.trace:
                try:
                    if pending.error is not None:
                        raise pending.error
                    request = self._finish(pending.admission, pending.trace)
                    self._join(request, reply)
                except Exception as error:  # noqa: BLE001 - the other admissions must be reported
                    what = f"the admission of slot {ended.slot}"
                    refusal = error if isinstance(error, LogitportError) else defects.to_error(error, what)
                    ended.error.CopyFrom(to_proto(refusal))
                    self._note_refused(pending.trace, refusal)
                else:
                    ended.reads_logits = request.reads_logits
                    describe_chain(request, ended.chain)

    def _note_refused(self, trace: AdmissionTrace, error: LogitportError) -> None:
        self.first_refused = self.first_refused or trace.log_fields
        trace.refused(error)
