"""SGLang's requests, as far as a processor reaches them, and how one is ended."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    PayloadError,
    ProcessorFailed,
    RegistryError,
    ServerUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whose fault it is: what an error means to whoever sent the request.
_CALLERS = (InvalidArgument, RegistryError, PayloadError, ProcessorFailed)
_PASSING = (ServerUnavailable, DeadlineExceeded, LimitExceeded)


def request_of(params: Mapping[str, Any] | None) -> Any:
    """SGLang's `Req` behind a row's `custom_params`; None if SGLang gave none, or if it is gone."""
    proxy = params.get("__req__") if isinstance(params, dict) else None
    try:
        # A weak proxy has no identity of its own; a method bound through it has the request itself.
        return None if proxy is None else proxy.finished.__self__
    except ReferenceError:
        return None


def awaits_token(req: Any) -> bool:
    """Whether what is sampled now joins the request's output: not amid its prompt, and not after its end."""
    return not req.finished() and not req.to_finish and req.inflight_middle_chunks <= 0


def end(req: Any, error: LogitportError) -> None:
    """Have SGLang end the request after this step, and tell its caller why."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    status = _status_of(error)
    kind = "BadRequestError" if status is HTTPStatus.BAD_REQUEST else "InternalServerError"
    req.to_finish = FINISH_ABORT(f"logitport: {type(error).__name__}: {error}", status, kind)


def _status_of(error: LogitportError) -> HTTPStatus:
    if isinstance(error, _CALLERS):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, _PASSING) else HTTPStatus.INTERNAL_SERVER_ERROR
