"""The span of a request's admission, and the fields of log records about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_session.telemetry import tracing
from logitport_session.telemetry.scope import Scope

if TYPE_CHECKING:
    from logitport_proto import processing_pb2

# Characters. Longer names are refused, and the refusal is logged.
_MAX_NAME_LENGTH = 256


class AdmissionTrace:
    """A context manager for the work of one admission. It may be entered several times, on one thread at a time.

    The span continues the trace that the engine names for the request. If it names none, the span belongs to the call
    that is active, or begins a trace.

    Args:
        session: the span of the session's opening, for a link.
    """

    def __init__(self, addition: processing_pb2.SlottedRequest, session: object) -> None:
        request_id = addition.request.request_id
        self._names = {"request_id": request_id[:_MAX_NAME_LENGTH]} if request_id else {}
        self._span = self._begin(addition, session) if tracing.is_on() else tracing.NO_SPAN

    def _begin(self, addition: processing_pb2.SlottedRequest, session: object) -> tracing.Span:
        attributes: tracing.Attributes = {
            "processors": len(addition.request.processors),
            "tenant": addition.request.tenant[:_MAX_NAME_LENGTH],
        }
        parent = tracing.continued(addition.traceparent, addition.tracestate)
        with Scope(self._names):
            return tracing.span("request admission", attributes, parent=parent, links=(session,))

    def __enter__(self) -> None:
        self._scope, self._active = Scope(self._names), self._span.active()
        self._scope.__enter__()
        self._active.__enter__()

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        self._active.__exit__(None, None, None)
        self._scope.__exit__()
        if exc is not None:
            self.refused(exc)

    @property
    def span(self) -> object:
        """The span, as `Span.context`."""
        return self._span.context

    @property
    def log_fields(self) -> dict[str, str]:
        """Fields for a log record: the request's name, and its trace."""
        return {**self._names, **tracing.ids(self._span)}

    def admitted(self, *, replaces: bool, tokens: int) -> None:
        """End the span of a request that was admitted.

        `replaces`: the session held the request already, with another history.
        """
        self._span.set("replaces", replaces)
        self._span.set("tokens", tokens)
        self._span.end()

    def refused(self, error: BaseException) -> None:
        """End the span of a request that was refused."""
        self._span.fail(error)
        self._span.end()

    def cancelled(self) -> None:
        """End the span of a request that was removed before its admission has ended."""
        self._span.set("cancelled", True)
        self._span.end()
