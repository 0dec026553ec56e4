"""The objects that vLLM's processors take: vLLM's own where it is installed, else its stub's."""

from __future__ import annotations

import functools
import inspect
from copy import deepcopy
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitport import dialects, payload
from logitport.errors import InvalidArgument, PayloadError
from logitport_session import stubs
from logitport_session.stubs.vllm.config import VllmConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_session.dialects.base import RequestContext

# Other engines' names for fields of vLLM's SamplingParams.
_ALIASES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
# The constructor's arguments for processors of vLLM's first model runner.
CONSTRUCTED_WITH = ("vllm_config", "device", "is_pin_memory")


@functools.cache
def module(name: str) -> Any:
    """Import a module of vLLM, or of its stub: the same that a processor in this process gets by importing it."""
    try:
        return import_module(name)
    except ImportError:
        return import_module(f"{stubs.__name__}.{name}")


def sampling_params(values: Mapping[str, Any], params: dict[str, Any], eos_token_ids: Sequence[int] = ()) -> Any:
    """Create vLLM's SamplingParams for a request.

    Args:
        values: the engine's sampling parameters; those that vLLM does not have are ignored.
        params: the processor's parameters; they are added to `extra_args`.
        eos_token_ids: the ids that end a sequence.

    Raises:
        InvalidArgument: vLLM rejects the values.
    """
    types = module("vllm.sampling_params")
    named = {_ALIASES.get(name, name): value for name, value in values.items() if value is not None}
    try:
        extra_args = {**named.get("extra_args", {}), **params}
        fields = {name: value for name, value in named.items() if name in _fields(types.SamplingParams)}
        fields["extra_args"] = deepcopy(extra_args) or None
        for name, convert in _CONVERTED.items():
            if name in fields:
                fields[name] = convert(types, fields[name])
        made = types.SamplingParams(**fields)
    except Exception as error:
        raise InvalidArgument(f"sampling_params cannot be converted to vLLM's SamplingParams: {error}") from error
    if eos_token_ids:
        made.update_from_generation_config({"eos_token_id": list(eos_token_ids)}, eos_token_ids[0])
    return made


def check_constructor(processor: Any, arguments: Sequence[str] = CONSTRUCTED_WITH) -> None:
    """Raise PayloadError unless the class can be called as vLLM does, with these positional arguments."""
    if not dialects.makes_instances(processor):
        return
    try:
        signature = inspect.signature(processor)
    except ValueError:  # written in C: the signature is unknown
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        listed = ", ".join(arguments)
        raise PayloadError(
            f"creating a {dialects.author_of(processor).__qualname__} would fail: {error}; vLLM calls it with "
            f"({listed}): " + _constructor_advice(signature, listed, len(arguments))
        ) from error


def _constructor_advice(signature: inspect.Signature, listed: str, count: int) -> str:
    try:
        signature.bind_partial(*range(count))
    except TypeError:
        return f"define __init__(self, {listed})"
    return "pass its other arguments as keywords, with functools.partial"


def construct(processor: Any, context: RequestContext) -> Any:
    """Create an instance as vLLM does, for the session of this request; or copy an instance that was shipped.

    Raises:
        PayloadError: it cannot be created or copied.
    """
    import torch

    if not dialects.makes_instances(processor):
        return copied(processor)
    config = VllmConfig(context.vocab_size, context.max_requests, context.tokenizer_id, context.eos_token_ids)
    device = torch.device(context.device)
    return payload.instantiate(processor, config, device, device.type == "cuda")


def copied(instance: Any) -> Any:
    """Deep-copy an instance. Raises PayloadError if it cannot be copied."""
    try:
        return deepcopy(instance)
    except Exception as error:
        raise PayloadError(
            f"the shipped instance of {type(instance).__qualname__} cannot be copied ({error}), and each session needs "
            "its own instance: ship the class"
        ) from error


@functools.cache
def _fields(cls: type) -> frozenset[str]:
    return frozenset(name for name in inspect.signature(cls).parameters if not name.startswith("_"))


def _public(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not name.startswith("_")}


# Fields of types that JSON lacks.
_CONVERTED: dict[str, Callable[[Any, Any], Any]] = {
    "logit_bias": lambda _, value: {int(token_id): bias for token_id, bias in value.items()},
    "output_kind": lambda types, value: types.RequestOutputKind(value),
    "structured_outputs": lambda types, value: types.StructuredOutputsParams(**_public(value)),
    "repetition_detection": lambda types, value: types.RepetitionDetectionParams(**_public(value)),
}
