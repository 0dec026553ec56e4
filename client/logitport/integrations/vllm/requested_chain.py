"""Reads a vLLM request's processors from its parameters, and determines the id that ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.common import tenants
from logitport.integrations.common.chains import KEY, chain_of
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.integrations.common.chains import Chain

_OWN_KEYS = (KEY, tenants.KEY)


def has_chain(params: Any, default: Chain) -> bool:
    """Return whether a `SamplingParams` has processors. Takes well under a microsecond, and never raises."""
    extra = params.extra_args
    return bool(default) if extra is None or KEY not in extra else True


def make_request(
    params: Any, default: Chain, prompt_ids: Sequence[int], output_ids: Sequence[int], request_id: str
) -> Request:
    """Make the request that is sent to the service. Raises InvalidArgument."""
    extra_args = params.extra_args
    return Request(
        prompt_ids,
        output_ids,
        processors=chain_of(extra_args, default),
        request_id=request_id,
        sampling_params=sampling_params(params),
        tenant=str((extra_args or {}).get(tenants.KEY, "")),
    )


def ending_id(params: Any, eos_token_ids: Sequence[int]) -> int:
    """Return the id that ends a request; the model's own if none does, as with ignore_eos and no stop_token_ids."""
    stops = (params.eos_token_id, *(params.stop_token_ids or ()), *eos_token_ids, 0)
    return int(next(token_id for token_id in stops if token_id is not None))


def sampling_params(params: Any) -> dict[str, Any]:
    """Return the parameters that differ from vLLM's defaults, for processors, without logitport's own."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(params)
    extra = values.pop("extra_args", None) or {}
    extra = {name: value for name, value in extra.items() if name not in _OWN_KEYS}
    values = {name: value for name, value in values.items() if not name.startswith("_")}
    return values | {"extra_args": extra} if extra else values
