"""Reads SGLang's requests from a processor's parameters, and ends them."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common.statuses import status_of, text_for_caller

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_log = logging.getLogger(__name__)


def request_of(params: Mapping[str, Any] | None) -> Any:
    """Return SGLang's `Req` for a row's `custom_params`; None if SGLang passed none, or if it was dropped.

    From a version of SGLang with other requests, the weak proxy that SGLang passed.
    """
    proxy = params.get("__req__") if isinstance(params, dict) else None
    try:
        # A weak proxy has no identity of its own; a method bound through it has the request itself.
        return None if proxy is None else proxy.finished.__self__
    except ReferenceError:
        return None
    except AttributeError:
        return proxy


def awaits_token(req: Any) -> bool:
    """Return whether the sampled id joins the request's output: its prompt is read, and it has not ended."""
    return not req.finished() and not req.to_finish and req.inflight_middle_chunks <= 0


def unreadable(error: Exception) -> LogitportError:
    """Make the error for a request of a version of SGLang whose requests have other attributes."""
    return LogitportError(
        f"the request of this SGLang cannot be read ({type(error).__name__}: {error}); 0.5.23 is known to work"
    )


def end(req: Any, error: LogitportError) -> None:
    """Have SGLang end the request after this step and report the error to its client. Does not raise."""
    try:
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        status = status_of(type(error))
        kind = "BadRequestError" if status is HTTPStatus.BAD_REQUEST else "InternalServerError"
        text = text_for_caller(type(error), str(error))
        req.to_finish = FINISH_ABORT(f"logitport: {type(error).__name__}: {text}", status, kind)
    except Exception:  # noqa: BLE001 - another version of SGLang; raising would end the engine
        _log.exception("logitport cannot end a request, which has failed: %s", error)


def end_ids(req: Any) -> Collection[int]:
    """Return the ids that end the request; none if it has none, or does not show them."""
    return getattr(req, "eos_token_ids", None) or ()
