"""Admits the requests of a session, before the reply or in the background."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, LogitportError, to_proto
from logitport_proto import common_pb2
from logitport_session.admissions.admission import Admission, check_limits
from logitport_session.admissions.admission_trace import AdmissionTrace
from logitport_session.admissions.checked_calls import CheckedCalls
from logitport_session.resources import defects
from logitport_session.steps.engine_programs import describe_chain
from logitport_session.trust.principals import Party

if TYPE_CHECKING:
    from logitport_proto import processing_pb2
    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.requests.active_request import ActiveRequest


@dataclass(slots=True)
class Admitted:
    """What a frame has admitted.

    Attributes:
        replayed_requests: requests that came with ids that were generated before, or again for their slot: after a
            lost connection, a move, or a difference of histories.
        replayed_tokens: the ids of their histories.
        queue_seconds: how long each admission in the background has waited before it began.
        first_refused: fields for log records about the first request that was refused, or {}.
    """

    replayed_requests: int = 0
    replayed_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)
    first_refused: dict[str, str] = field(default_factory=dict)

    def note_refused(self, trace: AdmissionTrace, error: LogitportError) -> None:
        """Record a refused request, and end its span."""
        self.first_refused = self.first_refused or trace.log_fields
        trace.refused(error)


def add(session: EngineSession, frame: processing_pb2.AddRequests, reply: processing_pb2.RequestsAdded) -> Admitted:
    """Admit requests. A refused request does not affect the others.

    A frame for admissions in the background also reports those that have ended. Admissions in the background run on
    other threads, where they use `LoadedProcessors` and nothing else of the session.
    """
    admitted = Admitted()
    reads_logits, pending = bytearray(), bytearray()
    shared = CheckedCalls()
    for addition in frame.requests:
        request, in_background = None, False
        trace = AdmissionTrace(addition, session.trace)
        with trace:
            try:
                admission = _check(session, addition)
                in_background = frame.in_background and _may_continue_in_background(session, admission, addition)
                find, seconds = session.processors.load, session.limits.load_timeout_seconds
                if in_background:
                    admission.charge(session.account)  # it may wait for others
                    load = partial(admission.load, find, seconds, in_background=True, account=session.account)
                    session.pending_admissions.begin(admission, load, trace)
                else:
                    admission.load(find, seconds, shared=shared, account=session.account)
                    request = _finish(session, admission, trace)
            except LogitportError as error:
                reply.failures.append(common_pb2.Failure(slot=addition.slot, error=to_proto(error)))
                admitted.note_refused(trace, error)
        chain = reply.chains.add()
        if request is not None:
            describe_chain(request, chain)
            _join(session, request, reply, admitted)
        reads_logits.append(request is not None and request.reads_logits)
        pending.append(in_background)
    reply.reads_logits = bytes(reads_logits)
    if any(pending):
        reply.pending = bytes(pending)
    if frame.in_background:
        _report_ended(session, reply, admitted)
    return admitted


def _check(session: EngineSession, addition: processing_pb2.SlottedRequest) -> Admission:
    """Check a request without its processors. Raises LogitportError."""
    previous = _request_at(session, addition.slot, addition.generation)
    check_limits(addition.request, session.limits)
    caller = Party(session.principal.name, addition.request.tenant)
    return Admission(addition, session.engine, previous, str(session.device), caller)


def _request_at(session: EngineSession, slot: int, generation: int) -> ActiveRequest | None:
    """The request of this slot and generation, if there is one. Raises InvalidArgument."""
    if not 0 <= slot < session.engine.max_requests:
        raise InvalidArgument(
            f"slot {slot} is outside [0, {session.engine.max_requests}), the slots of this session; remove requests "
            "that have ended, or raise --max-requests-per-session"
        )
    request = session.batch.requests.get(slot)
    occupant = session.pending_admissions.generation_at(slot) if request is None else request.generation
    if occupant not in (None, generation):
        raise InvalidArgument(f"slot {slot} holds generation {occupant}; remove that request first")
    return request


def _may_continue_in_background(
    session: EngineSession, admission: Admission, addition: processing_pb2.SlottedRequest
) -> bool:
    """Whether the admission of a request may take long, and no step needs the request already."""
    return (
        addition.slot not in session.batch.requests
        and session.processors.may_take_long_to_admit(addition.request)
        and session.pending_admissions.can_begin(admission)
    )


def _finish(session: EngineSession, admission: Admission, trace: AdmissionTrace) -> ActiveRequest:
    request = admission.finish()
    request.trace = trace.span
    trace.admitted(replaces=admission.slot in session.batch.requests, tokens=len(request.history))
    return request


def _join(
    session: EngineSession, request: ActiveRequest, reply: processing_pb2.RequestsAdded, admitted: Admitted
) -> None:
    """Add an admitted request to the batch."""
    session.pending_admissions.cancel(request.slot, request.generation)
    length = request.history.length
    if length > request.history.prompt_length or request.slot in session.batch.requests:
        admitted.replayed_requests += 1
        admitted.replayed_tokens += length
    session.batch.put(request)
    if session.lending.admitted(request):
        session.regions.retire()
        reply.regions_retired = True


def _report_ended(session: EngineSession, reply: processing_pb2.RequestsAdded, admitted: Admitted) -> None:
    """Report the admissions that have ended in the background. Admitted requests join the batch."""
    for pending in session.pending_admissions.take_ended():
        ended = reply.ended.add(slot=pending.admission.slot, generation=pending.admission.generation)
        admitted.queue_seconds.append(pending.queue_seconds)
        with pending.trace:
            try:
                if pending.error is not None:
                    raise pending.error
                request = _finish(session, pending.admission, pending.trace)
                _join(session, request, reply, admitted)
            except Exception as error:  # noqa: BLE001 - the other admissions must be reported
                what = f"the admission of slot {ended.slot}"
                refusal = error if isinstance(error, LogitportError) else defects.to_error(error, what)
                ended.error.CopyFrom(to_proto(refusal))
                admitted.note_refused(pending.trace, refusal)
            else:
                ended.reads_logits = request.reads_logits
                describe_chain(request, ended.chain)
