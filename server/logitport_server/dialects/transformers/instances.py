"""From a processor as it was shipped to what is called for one request."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import orjson
import torch

from logitport import payload
from logitport.dialects import author_of, makes_instances
from logitport.errors import InvalidParams, LoadFailed
from logitport_server.dialects.snapshot import Snapshot
from logitport_server.dialects.transformers.stateless import is_stateless

if TYPE_CHECKING:
    from logitport_server.dialects.base import RequestContext


class Instances:
    """Makes what is called with (input_ids, scores): for each request its own, unless it is known to keep nothing.

    A class, or a functools.partial of one, is called with the request's parameters as keyword arguments. Anything else
    is copied, with all that it holds; then a function has the parameters bound to it, and an instance takes none.
    """

    def __init__(self, processor: Any, name: str) -> None:
        self._processor = processor
        self._name = name
        self._is_class = makes_instances(processor)
        self._is_instance = isinstance(author_of(processor), type) and not self._is_class
        try:
            self._signature = None if self._is_instance else inspect.signature(processor)
        except (TypeError, ValueError):  # written in C
            self._signature = None
        # Those that keep nothing, by their arguments.
        self._shared: WeakValueDictionary[bytes, Any] = WeakValueDictionary()

    def make(self, context: RequestContext, params: dict[str, Any]) -> Any:
        """For a request; its tensors lie where the logits will be.

        Raises:
            InvalidParams: it takes other parameters.
            LoadFailed: it cannot be made, or not copied.
        """
        if self._is_instance and params:
            raise InvalidParams(
                f"processor {self._name} is an instance, which was configured before it was shipped, and takes no "
                f"parameters ({', '.join(params)}); ship its class"
            )
        arguments = {**self._known(context), **params} if self._is_class else params
        key = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
        made = self._shared.get(key)
        if made is None:
            self._check(arguments)
            arguments = orjson.loads(key)  # which it may keep, and change
            made = self._construct(arguments) if self._is_class else self._bind(arguments)
            made = _moved(made, torch.device(context.device))
            if is_stateless(made):
                self._shared[key] = made
        return made

    def _known(self, context: RequestContext) -> dict[str, Any]:
        """What `generate` tells a processor by itself, as far as the class asks for it."""
        parameters = self._signature.parameters if self._signature is not None else {}
        of_the_prompt = ("prompt_length_to_skip", "input_ids_seq_length", "begin_index")
        known = {
            **dict.fromkeys(of_the_prompt, context.history.prompt_length),
            "encoder_input_ids": [context.history.prompt_token_ids.tolist()],
            "num_beams": 1,
            "vocab_size": context.vocab_size,
        }
        wanted = {name: known[name] for name, one in parameters.items() if name in known and one.default is one.empty}
        return {**wanted, "device": context.device} if "device" in parameters else wanted

    def _check(self, arguments: dict[str, Any]) -> None:
        if self._signature is None:
            return
        try:
            self._signature.bind(*() if self._is_class else ("input_ids", "scores"), **arguments)
        except TypeError as error:
            raise InvalidParams(f"processor {self._name} takes {self._signature}: {error}") from error

    def _construct(self, arguments: dict[str, Any]) -> Any:
        parameters = self._signature.parameters if self._signature is not None else {}
        for name, value in arguments.items():
            if isinstance(value, list) and name in parameters and _wants_tensor(parameters[name]):
                arguments[name] = torch.tensor(value)
        try:
            return payload.instantiate(self._processor, **arguments)
        except LoadFailed as error:
            if not arguments:
                raise
            raise InvalidParams(error.message, remote_traceback=error.remote_traceback) from error

    def _bind(self, params: dict[str, Any]) -> Any:
        try:
            own = copy.deepcopy(self._processor)
        except Exception as error:
            raise LoadFailed(
                f"processor {self._name} is copied for each request, and cannot be ({type(error).__name__}: {error}); "
                "ship its class"
            ) from error
        return functools.partial(own, **params) if params else own


def _wants_tensor(parameter: inspect.Parameter) -> bool:
    """Whether it is annotated as a tensor, and not as a list too; annotations do not travel with shipped classes."""
    annotation = str(parameter.annotation)
    return "Tensor" in annotation and "list" not in annotation


def _moved(made: Any, device: torch.device) -> Any:
    """The same, or a copy whose tensors are on the device."""
    elsewhere = [] if device.type == "cpu" else [one for one in Snapshot(made).tensors if one.device != device]
    return copy.deepcopy(made, {id(one): one.to(device) for one in elsewhere}) if elsewhere else made
