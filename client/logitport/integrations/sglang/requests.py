"""SGLang's requests: reads them from a processor's parameters, tracks them in a session, and ends them."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, StateLost
from logitport.integrations.common import tenants
from logitport.integrations.common.chains import chain_of
from logitport.integrations.common.statuses import status_of, text_for_caller
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport.integrations.common.chains import Chain
    from logitport.session import Handle, Session


_log = logging.getLogger(__name__)

# Set once the plugin is installed in this process. SGLang loads plugins in all of its processes.
plugin_installed = threading.Event()


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


def end_ids(req: Any) -> Collection[int]:
    """Return the ids that end the request. Empty if it has no such ids, or does not show them."""
    return getattr(req, "eos_token_ids", None) or ()


def end(req: Any, error: LogitportError) -> None:
    """Have SGLang end the request after this step and report the error to its client. Does not raise."""
    try:
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        status = status_of(type(error), error.code)
        kind = "BadRequestError" if status is HTTPStatus.BAD_REQUEST else "InternalServerError"
        text = text_for_caller(type(error), error.code, str(error))
        req.to_finish = FINISH_ABORT(f"logitport: {type(error).__name__}: {text}", status, kind)
    except Exception:  # noqa: BLE001 - another version of SGLang; raising would end the engine
        _log.exception("logitport cannot end a request, which has failed: %s", error)


def tenant_in(custom_params: Mapping[str, Any]) -> str:
    """Return the tenant that SGLang's front end wrote; "" without the plugin, where a client may have written it."""
    return str(custom_params.get(tenants.KEY, "")) if plugin_installed.is_set() else ""


@dataclass
class TrackedRequest:
    """One request, from its first step to its end, across retractions from SGLang's batch.

    Attributes:
        req: SGLang's own, a weak reference.
        chain: its processors.
        tenant: the tenant that sent it.
        handle: the session's; None before admission, and after the session is lost.
        lost: why it cannot continue in another session.
    """

    req: weakref.ref[Any]
    chain: Chain
    tenant: str = ""
    handle: Handle | None = None
    lost: StateLost | None = None

    def request(self) -> Request:
        """Make the request to admit, with its whole history."""
        req: Any = self.req()
        return Request(
            _prompt_of(req), req.output_ids, processors=self.chain, request_id=str(req.rid), tenant=self.tenant
        )


class TrackedRequests:
    """The requests that have started and not ended.

    Args:
        default: the chain of requests that name none.
    """

    def __init__(self, default: Chain) -> None:
        self._default = default
        self._tracked: dict[int, TrackedRequest] = {}

    def track(self, req: Any, custom_params: Mapping[str, Any]) -> TrackedRequest:
        """Return the tracked request, parsing its chain at the first call. Raises InvalidArgument."""
        tracked = self._tracked.get(id(req))
        if tracked is None or tracked.req() is not req:
            chain = chain_of(custom_params, self._default)
            tracked = self._tracked[id(req)] = TrackedRequest(weakref.ref(req), chain, tenant_in(custom_params))
        return tracked

    def may_have_chain(self, custom_params: Mapping[str, Any]) -> bool:
        """Return whether a request with these parameters has processors, or parameters that are wrong."""
        try:
            return bool(chain_of(custom_params, self._default))
        except InvalidArgument:
            return True

    def drop_ended(self, session: Session | None) -> None:
        """Remove requests that have ended, or that SGLang dropped, from the session, with one frame.

        Raises the errors of `Session.remove`.
        """
        ended: list[Handle] = []
        for key, tracked in list(self._tracked.items()):
            req = tracked.req()
            if req is None or req.finished():
                del self._tracked[key]
                if tracked.handle is not None:
                    ended.append(tracked.handle)
        if session is not None:
            session.remove(*ended)

    def mark_session_lost(self, error: LogitportError) -> None:
        """Detach all requests from a lost session. Those with state that follows from history can join a new one."""
        for tracked in self._tracked.values():
            if tracked.handle is not None and tracked.handle.processed:
                tracked.lost = StateLost(f"the state of its processors was lost with the session: {error}")
            tracked.handle = None


def _prompt_of(req: Any) -> Sequence[int]:
    """Return the prompt's ids as tokenized; in `origin_input_ids` SGLang replaces the ids of images by hashes."""
    ids: Sequence[int] = req.origin_input_ids_unpadded
    return ids if len(ids) else req.origin_input_ids


def new_ids(req: Any, handle: Handle, session: Session) -> Sequence[int]:
    """Return the ids sampled since the request's last step. Rewinds the session's history if SGLang's was cut back.

    SGLang keeps the output of a request that it retracts, but restarts one that has input embeddings.
    """
    history, output = handle.history, req.output_ids
    known = history.length - history.prompt_length
    if known and (len(output) < known or output[known - 1] != history.at(history.length - 1)):
        pairs = zip(history.output_token_ids.tolist(), output, strict=False)
        known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        session.rewind(handle, history.prompt_length + known)
    ids: Sequence[int] = output[known:]
    return ids
