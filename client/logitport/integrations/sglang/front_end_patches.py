"""Checks a request and tries its chains before SGLang schedules it, and adds what the hook needs."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument, LogitportError
from logitport.integrations.common import tenants
from logitport.integrations.common.chains import KEY, chain_of
from logitport.integrations.common.environment import default_chain
from logitport.integrations.common.statuses import caused_by_chain
from logitport.integrations.common.trials import ANY_VOCAB_SIZE, Trials
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.integrations.sglang.engine_options import BEAMS, BLOCK_ALGORITHMS, engine_name, published_names
from logitport.integrations.sglang.guard import REFUSED, names_hook
from logitport.integrations.sglang.requests import NO_GRAMMAR, NO_MASK, check_custom_params, names_of, plugin_installed
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

_log = logging.getLogger(__name__)
trials = Trials()


def install() -> None:
    """Patch SGLang's front ends and its scheduler in this process."""
    from sglang.srt.managers import tokenizer_manager
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    plugin_installed.set()
    tokenizer_manager.supports_sampling_mask = _wrap_supports(tokenizer_manager.supports_sampling_mask)
    TokenizerManager.generate_request = _wrap_generate(TokenizerManager.generate_request)
    GenerateReqInput.normalize_batch_and_arguments = _wrap_normalize(GenerateReqInput.normalize_batch_and_arguments)
    Req.__init__ = _wrap_init(Req.__init__)


# Where a `GenerateReqInput` holds the headers of its HTTP request, and whether it was normalized before SGLang does so.
_HEADERS = "logitport_headers"
_NORMALIZED = "logitport_normalized"
# The sampling parameters of SGLang with a grammar.
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def _wrap_supports(supports: Callable[[str], bool]) -> Callable[[str], bool]:
    @functools.wraps(supports)
    def wrapped(serialized: str) -> bool:
        """Leave a request with logitport's reference to `_after_trials`, which knows its chain."""
        return names_hook(serialized) or supports(serialized)

    return wrapped


def _wrap_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def wrapped(manager: Any, inputs: Any, request: Any = None, *args: Any, **keywords: Any) -> Any:
        """Keep the headers of the request, because the checks get only its body. Try its chains first."""
        setattr(inputs, _HEADERS, () if request is None else request.headers.raw)
        output = generate(manager, inputs, request, *args, **keywords)
        return _after_trials(output, manager, inputs) if _may_have_chain(inputs) else output

    return wrapped


def _may_have_chain(inputs: Any) -> bool:
    """Return whether inputs that are not normalized may have processors. Those for embeddings have none."""
    if not hasattr(inputs, "custom_logit_processor"):
        return False
    params = inputs.sampling_params if isinstance(inputs.sampling_params, list) else [inputs.sampling_params]
    given = inputs.custom_logit_processor or any(isinstance(one, dict) and one.get("custom_params") for one in params)
    return bool(given or default_chain())


async def _after_trials(output: AsyncGenerator[Any, None], manager: Any, inputs: Any) -> AsyncIterator[Any]:
    """Check the request, try its chains off the event loop, and then run SGLang's own generator.

    Not in that generator: there, the checks are synchronous, or hold a lock that an update of the weights waits for.
    """
    async with aclosing(output):
        inputs.normalize_batch_and_arguments()
        setattr(inputs, _NORMALIZED, True)
        has_blocks = _speculates_in_blocks(manager)
        for trial, returns_mask, has_grammar in _requests(inputs):
            if has_grammar and has_blocks:
                raise ValueError(f"logitport: {NO_GRAMMAR}")
            try:
                only_denies = await trials.run_on_thread(trial, _options(manager))
                if returns_mask and not only_denies:
                    raise ValueError(NO_MASK + names_of(trial.processors))
            except LogitportError as error:
                # SGLang answers ValueError with 400; no other status exists there.
                if caused_by_chain(type(error)) or returns_mask:
                    raise ValueError(f"logitport: {type(error).__name__}: {error}") from None
                # The scheduler tries again, and ends the request with its status.
                _log.warning("logitport: a request goes on without a trial of its chain: %s", error)
        async for chunk in output:
            yield chunk


def _wrap_normalize(normalize: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(normalize)
    def wrapped(inputs: Any) -> None:
        """Check each request. Raises ValueError, which SGLang answers with status 400, if one is refused."""
        if vars(inputs).pop(_NORMALIZED, False):
            return
        normalize(inputs)

        @functools.cache
        def tenant() -> str:  # at the first use: requests without a chain call no operator's code
            headers = tenants.headers_of(getattr(inputs, _HEADERS, ()))
            return tenants.tenant_of(tenants.EngineRequest(headers, inputs))

        checked = [_check(string, params, tenant) for string, params in _per_request(inputs)]
        if isinstance(inputs.sampling_params, list):
            inputs.custom_logit_processor = [string for string, _ in checked]
            inputs.sampling_params = [params for _, params in checked]
        else:
            ((inputs.custom_logit_processor, inputs.sampling_params),) = checked

    return wrapped


def _per_request(inputs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the processor string and the sampling parameters of each request of the inputs."""
    strings, params = inputs.custom_logit_processor, inputs.sampling_params
    if not isinstance(params, list):
        yield strings, params
    else:
        yield from zip(strings if isinstance(strings, list) else [strings] * len(params), params, strict=False)


def _returns_mask(inputs: Any) -> list[bool]:
    """Return for each request of the normalized inputs whether it returns the ids that could be sampled."""
    masks = getattr(inputs, "return_sampling_mask", False)
    return [bool(mask) for mask in (masks if isinstance(masks, list) else [masks])]


def _check(
    serialized: str | None, sent: dict[str, Any] | None, tenant: Callable[[], str]
) -> tuple[str | None, dict[str, Any] | None]:
    """Return processor and sampling parameters as the scheduler needs them: with the tenant, and the chain as text.

    SGLang's messages hold no nested lists. A tenant that a client has sent is overwritten. A request that names a chain
    and no processor gets the reference to the hook.
    """
    params = sent or {}
    custom_params = params.get("custom_params") or {}
    names_chain = custom_params.get(KEY) is not None
    if serialized and not names_hook(serialized):
        raise InvalidArgument(REFUSED)
    check_custom_params(custom_params)
    if names_chain:
        serialized = serialized or RemoteLogitProcessor.to_str()
    if not serialized and not default_chain():  # with a default, the scheduler adds the processor to every request
        return serialized, sent
    if serialized and (params.get("beam_width") or 1) > 1:
        raise InvalidArgument(BEAMS)
    changed = dict(custom_params)
    if names_chain:
        changed[KEY] = orjson.dumps(chain_of(custom_params), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    if tenant() or tenants.KEY in custom_params:
        changed[tenants.KEY] = tenant()
    return serialized, params if changed == custom_params else {**params, "custom_params": changed}


def _speculates_in_blocks(manager: Any) -> bool:
    algorithm = getattr(getattr(manager, "server_args", None), "speculative_algorithm", None)
    return str(algorithm).upper() in BLOCK_ALGORITHMS


def _requests(inputs: Any) -> Iterator[tuple[Request, bool, bool]]:
    """Yield the different chains of the normalized inputs.

    Each is a request without ids, with `_returns_mask`, and whether SGLang applies a grammar to it.
    """
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    default = default_chain()
    if str(inputs.rid).startswith(HEALTH_CHECK_RID_PREFIX):
        return
    tried: list[Any] = []
    masks = itertools.chain(_returns_mask(inputs), itertools.repeat(False))
    for (string, params), returns_mask in zip(_per_request(inputs), masks, strict=False):
        if string and not names_hook(string):
            continue
        custom_params = (params or {}).get("custom_params") or {}
        has_grammar = any((params or {}).get(key) is not None for key in _GRAMMARS)
        if (custom_params, returns_mask, has_grammar) not in tried:
            tried.append((custom_params, returns_mask, has_grammar))
            if chain := chain_of(custom_params, default):
                tenant = str(custom_params.get(tenants.KEY, ""))
                yield Request(processors=chain, tenant=tenant), returns_mask, has_grammar


def _options(manager: Any) -> dict[str, Any]:
    """Return the options of a session of SGLang's `TokenizerManager`."""
    model = getattr(manager, "model_config", None)
    return {
        "vocab_size": getattr(model, "vocab_size", None) or ANY_VOCAB_SIZE,
        **published_names(),
        "eos_token_ids": sorted(getattr(model, "hf_eos_token_id", None) or ()),
        "engine": f"{engine_name()}, front end",
    }


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
