"""SGLang's requests: reads them from a processor's parameters, tracks them in a session, and ends them."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, StateLost
from logitport.integrations.common import tenants
from logitport.integrations.common.engine_batch import EngineBatch
from logitport.integrations.common.engine_step import TrackedRequest
from logitport.integrations.common.request_keys import check_keys
from logitport.integrations.common.statuses import status_of, text_for_caller
from logitport.integrations.sglang import meta_info
from logitport.shipping.request import Request

if TYPE_CHECKING:
    import weakref
    from collections.abc import Collection, Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport.integrations.common.chains import Chain
    from logitport.session import Handle


_log = logging.getLogger(__name__)

# SGLang reads or writes these in `custom_params`.
_ENGINE_KEYS = ("__req__", "__sglang_reasoning_end_token_ids", "__sglang_reasoning_in_grammar", "thinking_budget")

# Why SGLang's prefill and decode engines refuse a request.
_STATE_STAYS = (
    "prefill/decode disaggregation: a class that reads logits may keep state that does not follow from the ids, and "
    "SGLang passes only the ids from the prefill engine to the decode engine; derive the class from EditProcessor, "
    "make it a program, or use an SGLang that does both"
)

# Why a request with `return_sampling_mask` is refused.
NO_MASK = (
    "logitport: return_sampling_mask needs processors that declare only_denies, because SGLang returns the ids that "
    "could be sampled, and not what else changed their probabilities; leave out return_sampling_mask, or those of this "
    "chain that do more than deny ids: "
)

# Why a request with processors and a grammar of SGLang's is refused with `BLOCK_ALGORITHMS`. Nothing checks whether the
# grammar leaves an id that the processors allow: SGLang would sample from a row without any.
NO_GRAMMAR = (
    "with DFLASH and DSPARK, SGLang applies its grammars after processors, and a row may be left without an id; use "
    'the built-in "grammar", or leave out the processors'
)

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


def ending_id(req: Any) -> int | None:
    """Return the id that a failed request gets: the smallest of those that end it, None if there is none."""
    return min(end_ids(req), default=None)


def ends_within(req: Any, ids: Sequence[int]) -> bool:
    """Return whether SGLang ends the request at one of these ids, which join its output.

    False if it ends at a stop string, which needs the text, and if SGLang does not show the ends.
    """
    params = getattr(req, "sampling_params", None)
    ending = {*end_ids(req), *(getattr(params, "stop_token_ids", None) or ())}
    limit = getattr(params, "max_new_tokens", None)
    if limit is not None and len(req.output_ids) + len(ids) >= limit:
        return True
    return not getattr(params, "ignore_eos", False) and not ending.isdisjoint(ids)


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


def check_custom_params(custom_params: Mapping[str, Any]) -> None:
    """Check the keys of a request's parameters. Raises the errors of `check_keys`."""
    check_keys(custom_params, "custom_params", _ENGINE_KEYS)


def tenant_in(custom_params: Mapping[str, Any]) -> str:
    """Return the tenant that SGLang's front end wrote; "" without the plugin, where a client may have written it."""
    return str(custom_params.get(tenants.KEY, "")) if plugin_installed.is_set() else ""


@dataclass(eq=False)
class SchedulerRequest(TrackedRequest):
    """One request, from its first step to its end, across retractions from SGLang's batch.

    Attributes:
        req: SGLang's own, a weak reference.
        chain: its processors.
        tenant: the tenant that sent it.
        refusal: why its parameters are refused, on all ranks.
        latest: its handle in the present session or the last one.
    """

    req: weakref.ref[Any]
    chain: Chain = ()
    tenant: str = ""
    refusal: Exception | None = None
    latest: Handle | None = None

    def to_admit(self) -> Request:
        """Make the request to admit, with its whole history."""
        req: Any = self.req()
        return Request(
            _prompt_of(req), req.output_ids, processors=self.chain, request_id=str(req.rid), tenant=self.tenant
        )


class SchedulerBatch(EngineBatch):
    """The requests of a scheduler. Those without logits in their state are admitted again after a session is lost.

    Attributes:
        is_disaggregated: whether another SGLang reads the prompts, or continues the outputs, of these requests.
    """

    sees_accepted_drafts = True
    is_disaggregated = False

    def on_admitted(self, request: SchedulerRequest) -> None:
        """Let the output of the request show its report, which includes that of an earlier session.

        Raises:
            InvalidArgument: its state would not reach the other SGLang, or its sampling mask would be wrong.
        """
        handle, req = request.handle, request.req()
        assert handle is not None  # noqa: S101 - it was admitted
        if self.is_disaggregated and handle.sends_logits and not handle.follows_from_history:
            raise InvalidArgument(_STATE_STAYS)
        # The front end has checked what the names meant then, and another front end may have checked nothing.
        if getattr(req, "return_sampling_mask", False) and not handle.only_denies:
            raise InvalidArgument(NO_MASK + names_of(request.chain))
        if request.latest is not None:
            handle.continue_report(request.latest)
        request.latest = handle
        meta_info.remember(req, handle)

    def error_of_lost(self, handle: Handle, error: LogitportError) -> LogitportError | None:
        """Return StateLost for state that does not follow from the history."""
        if handle.processed:
            return StateLost(f"the state of its processors was lost with the session: {error}")
        return None


def names_of(chain: Chain) -> str:
    """Return the processors of a chain for a message."""
    return ", ".join(str(name)[:40] for name, _ in chain)


def _prompt_of(req: Any) -> Sequence[int]:
    """Return the prompt's ids as tokenized; in `origin_input_ids` SGLang replaces the ids of images by hashes."""
    ids: Sequence[int] = req.origin_input_ids_unpadded
    return ids if len(ids) else req.origin_input_ids


def new_ids(req: Any, request: SchedulerRequest, batch: EngineBatch) -> list[int]:
    """Return the ids sampled since the request's last step. Rewinds the session's history if SGLang's was cut back.

    SGLang keeps the output of a request that it retracts, but restarts one that has input embeddings.
    """
    if request.handle is None:
        return []  # it is admitted with them
    history, output = request.handle.history, req.output_ids
    known = history.length - history.prompt_length
    if known and (len(output) < known or output[known - 1] != history.at(history.length - 1)):
        pairs = zip(history.output_token_ids.tolist(), output, strict=False)
        known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        batch.rewind(request, history.prompt_length + known)
    return list(output[known:])
