"""Checks a request before SGLang schedules it, and adds what the hook needs."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common import tenants
from logitport.integrations.common.chains import KEY, chain_of
from logitport.integrations.common.environment import default_chain
from logitport.integrations.sglang import RemoteLogitProcessor, trials
from logitport.integrations.sglang.engine import BEAMS
from logitport.integrations.sglang.guard import REFUSED, names_hook

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

_NO_PROCESSOR = (
    f'custom_params has "{KEY}", but the request has no custom_logit_processor, so it would have no effect; send '
    "logitport.integrations.sglang.RemoteLogitProcessor.to_str() as custom_logit_processor"
)


def install() -> None:
    """Patch SGLang's front ends and its scheduler in this process."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    _installed.set()
    TokenizerManager.generate_request = _wrap_generate(TokenizerManager.generate_request)
    GenerateReqInput.normalize_batch_and_arguments = _wrap_normalize(GenerateReqInput.normalize_batch_and_arguments)
    Req.__init__ = _wrap_init(Req.__init__)


def tenant_in(custom_params: Mapping[str, Any]) -> str:
    """Return the tenant that SGLang's front end wrote; "" without the plugin, where a client may have written it."""
    return str(custom_params.get(tenants.KEY, "")) if _installed.is_set() else ""


# Whether `install` was called in this process. SGLang loads plugins in all of its processes.
_installed = threading.Event()

# Where a `GenerateReqInput` holds the headers of its HTTP request, and whether it was normalized before SGLang does so.
_HEADERS = "logitport_headers"
_NORMALIZED = "logitport_normalized"


def _wrap_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def wrapped(manager: Any, inputs: Any, request: Any = None, *args: Any, **keywords: Any) -> Any:
        """Keep the headers of the request, because the checks get only its body. Try its chains first."""
        setattr(inputs, _HEADERS, () if request is None else request.headers.raw)
        output = generate(manager, inputs, request, *args, **keywords)
        return _after_trials(output, manager, inputs) if trials.has_chain(inputs) else output

    return wrapped


async def _after_trials(output: AsyncGenerator[Any, None], manager: Any, inputs: Any) -> AsyncIterator[Any]:
    """Check the request, try its chains off the event loop, and then run SGLang's own generator.

    Not in that generator: there, the checks are synchronous, or hold a lock that an update of the weights waits for.
    """
    async with aclosing(output):
        inputs.normalize_batch_and_arguments()
        setattr(inputs, _NORMALIZED, True)
        await trials.try_chains(manager, inputs)
        async for chunk in output:
            yield chunk


def _wrap_normalize(normalize: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(normalize)
    def wrapped(inputs: Any) -> None:
        """Check each request. Raises ValueError, which SGLang answers with status 400, if one is refused."""
        if vars(inputs).pop(_NORMALIZED, False):
            return
        normalize(inputs)
        tenant = _TenantOf(inputs)
        strings, params = inputs.custom_logit_processor, inputs.sampling_params
        if isinstance(params, list):
            per_request = strings if isinstance(strings, list) else [strings] * len(params)
            inputs.sampling_params = [
                _with_tenant(_check(string, one), string, tenant)
                for string, one in zip(per_request, params, strict=False)
            ]
        else:
            inputs.sampling_params = _with_tenant(_check(strings, params), strings, tenant)

    return wrapped


class _TenantOf:
    """Finds the tenant of a `GenerateReqInput` at the first use: requests without a chain call no operator's code."""

    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs

    @functools.cached_property
    def value(self) -> str:
        headers = tenants.headers_of(getattr(self._inputs, _HEADERS, ()))
        return tenants.tenant_of(tenants.EngineRequest(headers, self._inputs))


def _with_tenant(params: dict[str, Any] | None, serialized: str | None, tenant: _TenantOf) -> dict[str, Any] | None:
    """Return the sampling parameters with the tenant, if the request will have processors. Overwrites a client's."""
    if not (names_hook(serialized) if serialized else default_chain()):
        return params
    params = params or {}
    custom_params = params.get("custom_params") or {}
    if not tenant.value and tenants.KEY not in custom_params:
        return params
    return {**params, "custom_params": {**custom_params, tenants.KEY: tenant.value}}


def _check(serialized: str | None, params: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the sampling parameters in a form that SGLang's scheduler can receive: it supports no nested lists."""
    if not serialized:
        if ((params or {}).get("custom_params") or {}).get(KEY) is None:
            return params
        if not default_chain():  # with a default, the scheduler adds the processor to every request
            raise InvalidArgument(_NO_PROCESSOR)
    elif not names_hook(serialized):
        raise InvalidArgument(REFUSED)
    params = params or {}
    if (params.get("beam_width") or 1) > 1:
        raise InvalidArgument(BEAMS)
    custom_params = params.get("custom_params") or {}
    chain = chain_of(custom_params)
    if custom_params.get(KEY) is None:
        return params
    text = orjson.dumps(chain, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return {**params, "custom_params": {**custom_params, KEY: text}}


def _wrap_init(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    default = default_chain()

    @functools.wraps(init)
    def wrapped(*args: Any, **keywords: Any) -> None:
        """Add empty `custom_params` to a request with a processor: without them SGLang passes no request to it."""
        from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

        bound = signature.bind(*args, **keywords)
        arguments = bound.arguments
        serialized = arguments.get("custom_logit_processor")
        if serialized is None and default and not str(arguments["rid"]).startswith(HEALTH_CHECK_RID_PREFIX):
            serialized = RemoteLogitProcessor.to_str()
        if serialized is not None:
            arguments["custom_logit_processor"] = serialized
            if not isinstance(arguments["sampling_params"].custom_params, dict):
                arguments["sampling_params"] = copy.copy(arguments["sampling_params"])
                arguments["sampling_params"].custom_params = {}
        init(*bound.args, **bound.kwargs)

    return wrapped
