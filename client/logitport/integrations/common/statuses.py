"""The error for a row without any id, and an engine's HTTP response to a request that was refused or failed.

The status depends on who can act: 400 the caller; 500 the author of a processor, or the operator; 503 the operator, and
a later attempt may succeed. The text for a caller has no address of the service: only the engine's log has it.
"""

from __future__ import annotations

from http import HTTPStatus

from logitport.errors import (
    AccessDenied,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    PayloadError,
    ProcessorFailed,
    ServerUnavailable,
    SessionClosed,
    StateLost,
)

# The caller can send another chain, other parameters or another payload.
_REQUEST_ERRORS = (InvalidArgument, NotFound, PayloadError)
# A later attempt may succeed.
_TEMPORARY_ERRORS = (ServerUnavailable, LimitExceeded, SessionClosed, StateLost)
_TEMPORARY_CODES = (AccessDenied.NOT_AUTHENTICATED, ProcessorFailed.QUARANTINED)
# Their messages describe what the caller sent or its processor did, and come from the service without its address.
_SHOWN_ERRORS = (*_REQUEST_ERRORS, ProcessorFailed, LimitExceeded, StateLost)
_UNREACHABLE = "the logitport service is unavailable; the engine's log has the reason; try again later"
_FAILED = "the logitport service or its hook failed; the engine's log has the reason"


def status_of(error: type[LogitportError], code: int) -> HTTPStatus:
    """Return 400 if the caller can act, 503 if a later attempt may succeed, otherwise 500.

    Args:
        error: the class of the error, which may come from another process.
        code: its code.
    """
    if issubclass(error, _REQUEST_ERRORS):
        return HTTPStatus.BAD_REQUEST
    is_temporary = issubclass(error, _TEMPORARY_ERRORS) or code in _TEMPORARY_CODES
    return HTTPStatus.SERVICE_UNAVAILABLE if is_temporary else HTTPStatus.INTERNAL_SERVER_ERROR


def caused_by_chain(error: type[LogitportError]) -> bool:
    """Return whether the chain of the request is the cause: the next attempt with the same chain would fail, too."""
    return issubclass(error, (*_REQUEST_ERRORS, ProcessorFailed))


def text_for_caller(error: type[LogitportError], code: int, message: str) -> str:
    """Return the message of an error, or a general one if the message may have addresses of the service."""
    if issubclass(error, _SHOWN_ERRORS):
        return message
    return _UNREACHABLE if status_of(error, code) is HTTPStatus.SERVICE_UNAVAILABLE else _FAILED


def all_denied(engine: str, request: str = "") -> InvalidArgument:
    """Make the error for a request with processors that have denied every id.

    Not ProcessorFailed: each processor did what its parameters state, so the caller of the engine can act.

    Args:
        engine: samples an arbitrary id then.
        request: names the request, if its caller does not know which one it is.
    """
    return InvalidArgument(
        f"{request}{': ' if request else ''}its processors deny every id, so {engine} would sample an arbitrary one; "
        "change their parameters"
    )
