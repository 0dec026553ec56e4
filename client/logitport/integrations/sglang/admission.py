"""What becomes of a request before SGLang schedules it: refused at the door, and given what the hook needs."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common.chains import KEY, chain_of
from logitport.integrations.common.environment import default_chain
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.integrations.sglang.engine import BEAMS
from logitport.integrations.sglang.guard import REFUSED, names_hook

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_PROCESSOR = (
    f'custom_params has "{KEY}", and the request no custom_logit_processor: nothing would come of it; send '
    "logitport.integrations.sglang.RemoteLogitProcessor.to_str() as custom_logit_processor"
)


def install(*, guarded: bool) -> None:
    """Have SGLang's front ends and its scheduler admit requests so in this process.

    Args:
        guarded: refuse processors other than logitport's.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.schedule_batch import Req

    GenerateReqInput.normalize_batch_and_arguments = _checking(
        GenerateReqInput.normalize_batch_and_arguments, guarded=guarded
    )
    Req.__init__ = _equipping(Req.__init__)


def _checking(normalize: Callable[[Any], None], *, guarded: bool) -> Callable[[Any], None]:
    @functools.wraps(normalize)
    def checked(inputs: Any) -> None:
        """Raises ValueError, which SGLang's servers answer with 400, for a request that is refused."""
        normalize(inputs)
        strings, params = inputs.custom_logit_processor, inputs.sampling_params
        if isinstance(params, list):
            each = strings if isinstance(strings, list) else [strings] * len(params)
            inputs.sampling_params = [_check(*pair, guarded=guarded) for pair in zip(each, params, strict=False)]
        else:
            inputs.sampling_params = _check(strings, params, guarded=guarded)

    return checked


def _check(serialized: str | None, params: dict[str, Any] | None, *, guarded: bool) -> dict[str, Any] | None:
    """The sampling parameters as SGLang can send them to its scheduler, which knows no nested lists."""
    if not serialized:
        if ((params or {}).get("custom_params") or {}).get(KEY) is None:
            return params
        if not default_chain():  # with one, the scheduler gives every request the processor
            raise InvalidArgument(_NO_PROCESSOR)
    elif not names_hook(serialized):
        if guarded:
            raise InvalidArgument(REFUSED)
        return params
    params = params or {}
    if (params.get("beam_width") or 1) > 1:
        raise InvalidArgument(BEAMS)
    custom_params = params.get("custom_params") or {}
    chain = chain_of(custom_params)
    if custom_params.get(KEY) is None:
        return params
    text = orjson.dumps(chain, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return {**params, "custom_params": {**custom_params, KEY: text}}


def _equipping(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    default = default_chain()

    @functools.wraps(init)
    def equipped(*args: Any, **keywords: Any) -> None:
        """A request with a processor gets `custom_params`, without which SGLang shows the processor no request."""
        from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

        bound = signature.bind(*args, **keywords)
        given = bound.arguments
        serialized = given.get("custom_logit_processor")
        if serialized is None and default and not str(given["rid"]).startswith(HEALTH_CHECK_RID_PREFIX):
            serialized = RemoteLogitProcessor.to_str()
        if serialized is not None:
            given["custom_logit_processor"] = serialized
            if not isinstance(given["sampling_params"].custom_params, dict):
                given["sampling_params"] = copy.copy(given["sampling_params"])
                given["sampling_params"].custom_params = {}
        init(*bound.args, **bound.kwargs)

    return equipped
