"""What a request of vLLM asks of logitport, and the id that would end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidParams
from logitport.integrations.common.chains import KEY, chain_of
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.integrations.common.history_batch import Chain

FAILURE_ID = "logitport_failure_id"


def asks(params: Any, default: Chain) -> bool:
    """Whether a `SamplingParams` asks for anything; told apart in well under a microsecond, and raises nothing."""
    extra = params.extra_args
    return bool(default) if extra is None or KEY not in extra else True


def chain(params: Any, default: Chain) -> Chain:
    """The chain in the `extra_args` of a `SamplingParams`, or the default. Raises InvalidParams."""
    return chain_of(params.extra_args, default)


def asked_of(
    params: Any, default: Chain, prompt_ids: Sequence[int], output_ids: Sequence[int], request_id: str
) -> Request:
    """What the service is told of a request. Raises InvalidParams."""
    failure_id(params)
    return Request(
        prompt_ids,
        output_ids,
        processors=chain(params, default),
        request_id=request_id,
        sampling_params=sampling_params(params),
    )


def failure_id(params: Any) -> int | None:
    """The id by which the caller wants to be told of a failure: one of its `stop_token_ids`, so that it comes back.

    Raises:
        InvalidParams: it is none of them.
    """
    wanted = (params.extra_args or {}).get(FAILURE_ID)
    if wanted is None:
        return None
    if type(wanted) is not int or wanted not in (params.stop_token_ids or ()):
        raise InvalidParams(
            f"{FAILURE_ID} is {wanted!r}, which is none of stop_token_ids; write it there too: a request that fails "
            "is ended by it, and the response's stop_reason tells so"
        )
    return wanted


def ending_id(params: Any, eos_token_ids: Sequence[int]) -> int:
    """The id that ends a request; with ignore_eos and no stop_token_ids none does, and this is the model's anyway.

    Raises nothing: a wrong `failure_id` is the fault of its request, and told where that is admitted.
    """
    try:
        wanted = failure_id(params)
    except InvalidParams:
        wanted = None
    stops = (wanted, params.eos_token_id, *(params.stop_token_ids or ()), *eos_token_ids, 0)
    return int(next(token_id for token_id in stops if token_id is not None))


def sampling_params(params: Any) -> dict[str, Any]:
    """Those that are not vLLM's defaults, for processors; without what was asked of logitport."""
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(params)
    extra = told.pop("extra_args", None) or {}
    extra = {name: value for name, value in extra.items() if name not in (KEY, FAILURE_ID)}
    told = {name: value for name, value in told.items() if not name.startswith("_")}
    return told | {"extra_args": extra} if extra else told
