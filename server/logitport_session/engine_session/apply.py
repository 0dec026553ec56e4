"""Apply: one step without a session; runs in a temporary session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_proto import common_pb2, processing_pb2
from logitport_session.admissions.admission import MAX_PROCESSORS_PER_REQUEST
from logitport_session.engine_session import session_admissions, session_steps
from logitport_session.engine_session.engine_session import MAX_DRAFT_TOKENS
from logitport_session.steps.batch import check_work
from logitport_session.steps.step_trace import StepTrace
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted
    from logitport_session.steps.outcome import StepDurations

_MAX_WIDTH = (1 << 31) - 1


def apply(
    message: processing_pb2.ApplyRequest,
    open_session: Callable[[processing_pb2.OpenSession], EngineSession],
    on_admitted: Callable[[Sequence[common_pb2.Failure], Admitted], object] = lambda *_: None,
) -> tuple[processing_pb2.ApplyResponse, StepDurations]:
    """Admit the requests, process their rows, and return the response and the time by cause.

    `on_admitted` is called with the refused requests, before the rows are processed.

    Raises:
        InvalidArgument, LimitExceeded: the message as a whole is invalid.
    """
    rows_per_request = message.num_tokens_in_batch or 1
    if rows_per_request < 1:
        raise InvalidArgument(
            f"num_tokens_in_batch is {rows_per_request}; send the number of rows of each request, 1 or more"
        )
    if len(message.logits.shape) != 2:
        raise InvalidArgument(f"logits have shape {list(message.logits.shape)}; send [rows, vocab_size]")
    num_rows, vocab_size = message.logits.shape
    if num_rows != len(message.requests) * rows_per_request:
        raise InvalidArgument(
            f"{num_rows} rows of logits for {len(message.requests)} requests of {rows_per_request} each; "
            f"send {len(message.requests) * rows_per_request} rows, request by request"
        )
    if vocab_size > _MAX_WIDTH:
        raise InvalidArgument(f"logits have shape {list(message.logits.shape)}; the width is {_MAX_WIDTH} at most")
    session = open_session(processing_pb2.OpenSession(vocab_size=vocab_size, datatype=message.logits.datatype))
    limits = session.limits
    if rows_per_request - 1 > MAX_DRAFT_TOKENS:
        raise LimitExceeded(
            f"num_tokens_in_batch is {rows_per_request}; the server accepts {1 + MAX_DRAFT_TOKENS} rows per "
            "request: send fewer"
        )
    if len(message.requests) > session.max_requests:
        raise LimitExceeded(
            f"{len(message.requests)} requests in one Apply; the server accepts {session.max_requests}: send fewer, "
            "or raise --max-requests-per-session"
        )
    # Longer chains are no work: their requests are refused.
    lengths = (len(request.processors) for request in message.requests)
    work = rows_per_request * sum(length for length in lengths if length <= MAX_PROCESSORS_PER_REQUEST)
    check_work(work, num_rows, limits)
    addition = [
        processing_pb2.SlottedRequest(slot=slot, request=request) for slot, request in enumerate(message.requests)
    ]
    added = processing_pb2.RequestsAdded()
    admitted = session_admissions.add(session, processing_pb2.AddRequests(requests=addition), added)
    on_admitted(added.failures, admitted)
    # The refused requests come first.
    response = processing_pb2.ApplyResponse(failures=added.failures)
    for refused in response.failures:
        refused.skipped = message.requests[refused.slot].on_error == common_pb2.ON_ERROR_SKIP
    trace = StepTrace() if tracing.current().is_recorded else None
    durations = session_steps.apply_rows(session, message.logits, rows_per_request, response, trace)
    if trace is not None:
        trace.make_spans()
    return response, durations
