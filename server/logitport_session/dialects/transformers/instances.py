"""Makes, from a shipped processor, the callable for one request; what dialects of such callables have in common."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import orjson
import torch

from logitport import payload
from logitport.dialects import author_of, makes_instances
from logitport.errors import InvalidArgument, PayloadError, StateLost
from logitport.tokenizers import operator_tokenizer
from logitport_session.dialects.base import Dialect
from logitport_session.dialects.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.tokenizers import Tokenizer
    from logitport_session.dialects.base import RequestContext

# The processors of transformers 5.23.0 that keep no state between calls and process each row separately. One instance
# of such a processor serves all requests with the same parameters, many rows in one call. Any other processor may keep
# state by batch position, so each request gets its own instance and call.
_MODULE = "transformers.generation.logits_process"

# They ignore the history, so one call may take rows with histories of different lengths.
_OF_SCORES = {
    "BarkEosPrioritizerLogitsProcessor",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinPLogitsWarper",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
}

# They read the history, or its length.
_OF_HISTORY = {
    "AlternatingCodebooksLogitsProcessor",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",  # derives from SequenceBiasLogitsProcessor
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",  # with prompt_ignore_length it refuses a call with several rows
    "SequenceBiasLogitsProcessor",  # the tensors that its first call stores are its arguments in another form
    "SuppressTokensAtBeginLogitsProcessor",
    "WatermarkLogitsProcessor",  # reseeds its generator for each row, from that row's history
    "WhisperTimeStampLogitsProcessor",
}

# Excluded although they are immutable: EncoderRepetitionPenaltyLogitsProcessor and
# EncoderNoRepeatNGramLogitsProcessor match row i with the i-th prompt of their constructor, and
# PrefixConstrainedLogitsProcessor passes the row number to a function.


@dataclass(slots=True, eq=False)
class InstanceState:
    """State of a request with an instance of its own.

    Attributes:
        request_id: the engine's name for the request.
        processor: the request's instance, or a shared stateless one.
        initial: snapshot of the new instance; None if it is stateless.
    """

    request_id: str
    processor: Callable[..., Any]
    initial: Snapshot | None


class InstanceDialect(Dialect):
    """A dialect where each request has its own instance of the processor, and an `InstanceState`."""

    reads_logits = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(None, name, shipped=shipped)
        self.processor = processor
        self._instances = Instances(processor, name)

    def _own_check(self) -> Callable[[Any], object] | None:
        check: Callable[[Any], object] | None = getattr(author_of(self.processor), "validate_params", None)
        return check

    def check_rebuildable(self, state: InstanceState) -> None:
        if state.initial is not None and Snapshot(state.processor) != state.initial:
            raise StateLost(
                f"request {state.request_id!r}: its history was changed, and {self.name} keeps state that cannot be "
                "rebuilt from the history; remove the request and add it again"
            )


class Instances:
    """Makes the callable of (input_ids, scores) for each request. Stateless ones are shared between requests.

    A class, or a functools.partial of one, is called with the request's parameters as keyword arguments. Anything else
    is deep-copied. A function then gets the parameters bound to it; an instance takes no parameters.
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
        # Stateless instances, by their arguments.
        self._shared: WeakValueDictionary[bytes, Any] = WeakValueDictionary()

    def make(self, context: RequestContext, params: dict[str, Any]) -> Any:
        """Make the callable for a request, with its tensors on the device of the logits.

        Raises:
            InvalidArgument: the processor takes other parameters.
            PayloadError: the processor cannot be instantiated or copied.
        """
        if self._is_instance and params:
            raise InvalidArgument(
                f"processor {self._name} was shipped as an instance, which takes no parameters "
                f"({', '.join(params)}); ship its class"
            )
        arguments = {**self._known(context), **params} if self._is_class else params
        key = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
        made = self._shared.get(key)
        if made is None:
            self._check({**arguments, **self._tokenizer(context, params)})
            arguments = orjson.loads(key)  # a copy, which the processor may keep and change
            made = (
                self._construct({**arguments, **self._tokenizer(context, params)})
                if self._is_class
                else self._bind(arguments)
            )
            made = _moved(made, torch.device(context.device))
            if is_stateless(made):
                self._shared[key] = made
        return made

    def _known(self, context: RequestContext) -> dict[str, Any]:
        """The required constructor arguments that `generate` itself would pass."""
        parameters = self._signature.parameters if self._signature is not None else {}
        of_the_prompt = ("prompt_length_to_skip", "input_ids_seq_length", "begin_index")
        known = {
            **dict.fromkeys(of_the_prompt, context.history.prompt_length),
            "encoder_input_ids": [context.history.prompt_token_ids.tolist()],
            "num_beams": 1,
            "vocab_size": context.vocab_size,
        }
        required = {name: known[name] for name, one in parameters.items() if name in known and one.default is one.empty}
        return {**required, "device": context.device} if "device" in parameters else required

    def _tokenizer(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Tokenizer]:
        """The argument `tokenizer`, if the constructor requires it and the request does not give it."""
        parameter = self._signature.parameters.get("tokenizer") if self._is_class and self._signature else None
        if parameter is None or parameter.default is not parameter.empty or "tokenizer" in params:
            return {}
        return {"tokenizer": operator_tokenizer(context.tokenizer_id)}

    def _check(self, arguments: dict[str, Any]) -> None:
        if self._signature is None:
            return
        try:
            self._signature.bind(*() if self._is_class else ("input_ids", "scores"), **arguments)
        except TypeError as error:
            raise InvalidArgument(f"processor {self._name} takes {self._signature}: {error}") from error

    def _construct(self, arguments: dict[str, Any]) -> Any:
        parameters = self._signature.parameters if self._signature is not None else {}
        for name, value in arguments.items():
            if isinstance(value, list) and name in parameters and _takes_tensor(parameters[name]):
                arguments[name] = torch.tensor(value)
        try:
            return payload.instantiate(self._processor, **arguments)
        except PayloadError as error:
            if not arguments:
                raise
            raise InvalidArgument(error.message, remote_traceback=error.remote_traceback) from error

    def _bind(self, params: dict[str, Any]) -> Any:
        try:
            own = copy.deepcopy(self._processor)
        except Exception as error:
            raise PayloadError(
                f"processor {self._name} cannot be copied, as is needed for each request "
                f"({type(error).__name__}: {error}); ship its class"
            ) from error
        return functools.partial(own, **params) if params else own


def _takes_tensor(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is annotated as a tensor and not also as a list. Shipped classes have no annotations."""
    annotation = str(parameter.annotation)
    return "Tensor" in annotation and "list" not in annotation


def _moved(made: Any, device: torch.device) -> Any:
    """Return the object itself, or a copy with its tensors on the device."""
    elsewhere = [] if device.type == "cpu" else [one for one in Snapshot(made).tensors if one.device != device]
    return copy.deepcopy(made, {id(one): one.to(device) for one in elsewhere}) if elsewhere else made


def is_stateless(processor: object) -> bool:
    """Whether the processor, or every one in a LogitsProcessorList, is exactly of a class above; no subclasses."""
    return all(_is(one, _OF_SCORES | _OF_HISTORY) for one in _parts(processor))


def takes_any_history(processor: object) -> bool:
    """Whether the processor, or every one in a LogitsProcessorList, ignores the history."""
    return all(_is(one, _OF_SCORES) for one in _parts(processor))


def _parts(processor: object) -> list[Any]:
    return list(processor) if _is(processor, {"LogitsProcessorList"}) else [processor]  # type: ignore[call-overload]


def _is(processor: object, names: set[str]) -> bool:
    return type(processor).__module__ == _MODULE and type(processor).__name__ in names
