"""What processors of vLLM are given: vLLM's own objects where it is installed, else what stands for them."""

from __future__ import annotations

import functools
import inspect
from copy import deepcopy
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitport import dialects, payload
from logitport.errors import InvalidParams, LoadFailed
from logitport_server import stubs
from logitport_server.stubs.vllm.config import VllmConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_server.dialects.base import RequestContext

# What other engines call the fields of vLLM's SamplingParams.
_ALSO_CALLED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
# How vLLM makes a processor of its first runner.
CONSTRUCTED_WITH = ("vllm_config", "device", "is_pin_memory")


@functools.cache
def module(name: str) -> Any:
    """A module of vLLM's, or what stands for it; of either, what a processor gets that imports it in this process."""
    try:
        return import_module(name)
    except ImportError:
        return import_module(f"{stubs.__name__}.{name}")


def sampling_params(told: Mapping[str, Any], params: dict[str, Any], eos_token_ids: Sequence[int] = ()) -> Any:
    """Those of a request, as vLLM's SamplingParams.

    Args:
        told: those of the engine; what vLLM does not have is left out.
        params: the processor's; they join `extra_args`.
        eos_token_ids: what ends a sequence.

    Raises:
        InvalidParams: vLLM would not take them.
    """
    types = module("vllm.sampling_params")
    named = {_ALSO_CALLED.get(name, name): value for name, value in told.items() if value is not None}
    try:
        extra_args = {**named.get("extra_args", {}), **params}
        fields = {name: value for name, value in named.items() if name in _fields(types.SamplingParams)}
        fields["extra_args"] = deepcopy(extra_args) or None
        for name, convert in _CONVERTED.items():
            if name in fields:
                fields[name] = convert(types, fields[name])
        made = types.SamplingParams(**fields)
    except Exception as error:
        raise InvalidParams(f"sampling_params cannot be vLLM's SamplingParams: {error}") from error
    if eos_token_ids:
        made.update_from_generation_config({"eos_token_id": list(eos_token_ids)}, eos_token_ids[0])
    return made


def check_constructor(processor: Any, arguments: Sequence[str] = CONSTRUCTED_WITH) -> None:
    """Raises LoadFailed unless the class can be called as vLLM calls it, with as many arguments as are named here."""
    if not dialects.makes_instances(processor):
        return
    try:
        signature = inspect.signature(processor)
    except ValueError:  # written in C: it cannot be told
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        listed = ", ".join(arguments)
        raise LoadFailed(
            f"creating a {dialects.author_of(processor).__qualname__} would fail: {error}; vLLM calls it with "
            f"({listed}): " + _what_to_write(signature, listed, len(arguments))
        ) from error


def _what_to_write(signature: inspect.Signature, listed: str, count: int) -> str:
    try:
        signature.bind_partial(*range(count))
    except TypeError:
        return f"define __init__(self, {listed})"
    return "give it whatever else it takes by functools.partial, as keywords"


def construct(processor: Any, context: RequestContext) -> Any:
    """An instance as vLLM makes it, for the session of this request; a copy, if an instance was shipped.

    Raises:
        LoadFailed: it cannot be made.
    """
    import torch

    if not dialects.makes_instances(processor):
        return copied(processor)
    config = VllmConfig(context.vocab_size, context.max_requests, context.tokenizer_id, context.eos_token_ids)
    device = torch.device(context.device)
    return payload.instantiate(processor, config, device, device.type == "cuda")


def copied(instance: Any) -> Any:
    """A copy that shares nothing with the instance. Raises LoadFailed if there can be none."""
    try:
        return deepcopy(instance)
    except Exception as error:
        raise LoadFailed(
            f"a {type(instance).__qualname__} was shipped that cannot be copied ({error}), and each session needs one "
            "of its own: ship the class"
        ) from error


@functools.cache
def _fields(cls: type) -> frozenset[str]:
    return frozenset(name for name in inspect.signature(cls).parameters if not name.startswith("_"))


def _public(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if not name.startswith("_")}


# Fields that JSON cannot hold.
_CONVERTED: dict[str, Callable[[Any, Any], Any]] = {
    "logit_bias": lambda _, told: {int(token_id): bias for token_id, bias in told.items()},
    "output_kind": lambda types, told: types.RequestOutputKind(told),
    "structured_outputs": lambda types, told: types.StructuredOutputsParams(**_public(told)),
    "repetition_detection": lambda types, told: types.RepetitionDetectionParams(**_public(told)),
}
