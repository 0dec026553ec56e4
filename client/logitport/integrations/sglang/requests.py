"""Reads SGLang's requests from a processor's parameters, and ends them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport.integrations.common.statuses import status_of, text_for_caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.errors import LogitportError


def request_of(params: Mapping[str, Any] | None) -> Any:
    """Return SGLang's `Req` for a row's `custom_params`; None if SGLang passed none, or if it was dropped."""
    proxy = params.get("__req__") if isinstance(params, dict) else None
    try:
        # A weak proxy has no identity of its own; a method bound through it has the request itself.
        return None if proxy is None else proxy.finished.__self__
    except ReferenceError:
        return None


def awaits_token(req: Any) -> bool:
    """Return whether the sampled id joins the request's output: its prompt is read, and it has not ended."""
    return not req.finished() and not req.to_finish and req.inflight_middle_chunks <= 0


def end(req: Any, error: LogitportError) -> None:
    """Have SGLang end the request after this step and report the error to its client."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    status = status_of(type(error))
    kind = "BadRequestError" if status is HTTPStatus.BAD_REQUEST else "InternalServerError"
    req.to_finish = FINISH_ABORT(
        f"logitport: {type(error).__name__}: {text_for_caller(type(error), str(error))}", status, kind
    )
