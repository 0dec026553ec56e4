"""Responses of vLLM to a request that is refused or fails: an exception with a status, counted in /metrics."""

from __future__ import annotations

import functools
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport import errors
from logitport.integrations.common.statuses import status_of, text_for_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

# Begins each message of the hook.
PREFIX = "logitport: "


def refusal(error: errors.LogitportError) -> Exception:
    """Return the exception for a request that is not admitted, and count it in `logitport_refused_requests_total`."""
    name = type(error).__name__
    if status_of(type(error), error.code) is not HTTPStatus.BAD_REQUEST:
        _log.warning("a request is refused, because its logitport chain cannot be checked: %s: %s", name, error)
    _counters()["refused"].labels(name).inc()
    return _exception(name, error.code, str(error))


def failure(error: str, code: int, message: str) -> Exception:
    """Return the exception for a request that failed later, and count it in `logitport_failed_requests_total`.

    Args:
        error: name of the error's class.
        code: its code.
        message: its message.
    """
    _counters()["failed"].labels(error).inc()
    return _exception(error, code, message)


def _exception(name: str, code: int, message: str) -> Exception:
    """Return an exception that vLLM answers with the error's status, and without a traceback in its log."""
    kind = getattr(errors, name, errors.LogitportError)
    status = status_of(kind, code)
    text = f"{PREFIX}{name}: {text_for_caller(kind, code, message)}"
    try:
        refused, unavailable = _exceptions()
    except ImportError:  # another vLLM answers ValueError with 400, and any other error with 500
        return ValueError(text) if status is HTTPStatus.BAD_REQUEST else kind(text)
    return refused(text) if status is HTTPStatus.BAD_REQUEST else unavailable(text, status)


@functools.cache
def _exceptions() -> tuple[Callable[[str], Exception], Callable[[str, HTTPStatus], Exception]]:
    """Return the classes for status 400, and for others.

    vLLM logs no traceback of a GenerationError where it streams, and passes on its other base class unchanged.
    """
    from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMValidationError

    class ChainRefused(GenerationError, VLLMValidationError):  # type: ignore[misc] # vLLM may be missing
        """The request or its processors are the cause."""

        def __init__(self, message: str) -> None:
            super().__init__(message)
            self.status_code = HTTPStatus.BAD_REQUEST

    class ServiceFailed(GenerationError, GracefulHTTPError):  # type: ignore[misc] # vLLM may be missing
        """The service is unavailable, or it or a processor has a defect."""

        def __init__(self, message: str, status: HTTPStatus) -> None:
            Exception.__init__(self, message)
            self.message = message
            self.status_code = self.http_status = status

    return ChainRefused, ServiceFailed


@functools.cache
def _counters() -> Mapping[str, Any]:
    """Return the counters, in the registry that vLLM serves at /metrics."""
    from prometheus_client import Counter

    return {
        "refused": Counter("logitport_refused_requests", "Requests with chains that were not admitted", ["error"]),
        "failed": Counter("logitport_failed_requests", "Requests that failed because of their chains", ["error"]),
    }
