"""The HTTP status of an engine's response to a request that was refused or failed."""

from __future__ import annotations

from http import HTTPStatus

from logitport.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotAuthenticated,
    PayloadError,
    ProcessorFailed,
    RegistryError,
    ServerUnavailable,
    SessionClosed,
    StateLost,
)

# Errors that the request caused, and temporary ones.
_REQUEST_ERRORS = (InvalidArgument, RegistryError, PayloadError, ProcessorFailed)
_TEMPORARY_ERRORS = (
    ServerUnavailable,
    DeadlineExceeded,
    LimitExceeded,
    SessionClosed,
    StateLost,
    NotAuthenticated,
)


def status_of(error: type[LogitportError]) -> HTTPStatus:
    """Return 400 for errors that the request or its processors caused, 503 for temporary ones, else 500."""
    if issubclass(error, _REQUEST_ERRORS):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE if issubclass(error, _TEMPORARY_ERRORS) else HTTPStatus.INTERNAL_SERVER_ERROR
