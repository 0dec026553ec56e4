"""Tries the chains of a request in SGLang's front end, so that its scheduler does not wait for slow classes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common import tenants
from logitport.integrations.common.chains import chain_of
from logitport.integrations.common.environment import default_chain
from logitport.integrations.common.statuses import caused_by_chain
from logitport.integrations.common.trials import ANY_VOCAB_SIZE, Trials
from logitport.integrations.sglang.engine import engine_name, model_name, tokenizer_id
from logitport.integrations.sglang.guard import names_hook
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)
_trials = Trials()


async def try_chains(manager: Any, inputs: Any) -> None:
    """Try each chain on a thread, so that other requests of the front end go on.

    An error that no request causes is only logged. The scheduler tries again, and ends the request with its status.

    Args:
        manager: SGLang's `TokenizerManager`.
        inputs: the normalized `GenerateReqInput`.

    Raises:
        ValueError: the service refuses a chain, or one of its processors fails. SGLang answers with status 400: its
            front end has no other errors.
    """
    for request in _requests(inputs):
        try:
            await _trials.run_on_thread(request, _options(manager))
        except LogitportError as error:
            if caused_by_chain(type(error)):
                raise ValueError(f"logitport: {type(error).__name__}: {error}") from None
            _log.warning("logitport: a request goes on without a trial of its chain: %s", error)


def has_chain(inputs: Any) -> bool:
    """Return whether an unnormalized `GenerateReqInput` may have a chain. Fast, because most have none."""
    return bool(getattr(inputs, "custom_logit_processor", None) or default_chain())


def _requests(inputs: Any) -> Iterator[Request]:
    """Return the different chains of the inputs, as requests without ids."""
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    default, strings, params = default_chain(), inputs.custom_logit_processor, inputs.sampling_params
    if str(inputs.rid).startswith(HEALTH_CHECK_RID_PREFIX):
        return
    all_params = params if isinstance(params, list) else [params]
    per_request = strings if isinstance(strings, list) else [strings] * len(all_params)
    tried: list[Any] = []
    for string, one in zip(per_request, all_params, strict=False):
        if string and not names_hook(string):
            continue
        custom_params = (one or {}).get("custom_params") or {}
        if custom_params not in tried:
            tried.append(custom_params)
            if chain := chain_of(custom_params, default):
                yield Request(processors=chain, tenant=str(custom_params.get(tenants.KEY, "")))


def _options(manager: Any) -> dict[str, Any]:
    """Return the options of a session."""
    model = getattr(manager, "model_config", None)
    return {
        "vocab_size": getattr(model, "vocab_size", None) or ANY_VOCAB_SIZE,
        "model_name": model_name(),
        "tokenizer_id": tokenizer_id(),
        "eos_token_ids": sorted(getattr(model, "hf_eos_token_id", None) or ()),
        "engine": f"{engine_name()}, front end",
        "transport": "grpc",
        "reconnect_seconds": 0.0,
    }
