"""An engine's description of one request, and the ways to name a processor."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
import orjson

from logitport import payload
from logitport.core import tensors
from logitport.core.history import History, int32_ids
from logitport.errors import InvalidArgument, NotFound
from logitport.shipping import serialize
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.core.history import TokenIds
    from logitport_proto import registry_pb2

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ON_ERROR = {"abort": common_pb2.ON_ERROR_ABORT, "skip": common_pb2.ON_ERROR_SKIP}


@dataclass(frozen=True)
class ProcessorRef:
    """A processor that the server has; returned by `Client.register` and `Client.processors`.

    Attributes:
        digest: SHA-256 of its dill or program bytes, 64 lowercase hexadecimal digits; "" for a built-in.
        names: names bound to it, sorted; a built-in has exactly one.
        builtin: whether it is installed with the server: a built-in, or one that the operator configured.
        python: Python minor version that made the payload, such as "3.11"; "" if unknown.
        dill: version of dill that made the payload; "" if unknown.
        size_bytes: length of the dill or program bytes; 0 for a built-in.
        registered_at: when it was first registered, in seconds since the Unix epoch; 0.0 for a built-in.
        owner: the principal that registered it; "" for a built-in, and where the server does not authenticate callers.
        shared: whether every caller may use it, not only its owner.
        quarantined: why it is quarantined; "" if it is not.
        class_name: name of the class or function, for display; "" if unknown.
        dialect: the contract that it was written for, one of `logitport.dialects.DIALECTS`; "program" for a program; ""
            if unknown.
        not_lifted: why `Client.register` has shipped it as code and not as a program; "" if it is a program, or if that
            was not tried.
    """

    digest: str
    names: tuple[str, ...] = ()
    builtin: bool = False
    python: str = ""
    dill: str = ""
    size_bytes: int = 0
    registered_at: float = 0.0
    owner: str = ""
    shared: bool = False
    quarantined: str = ""
    class_name: str = ""
    dialect: str = ""
    not_lifted: str = ""

    @property
    def display_name(self) -> str:
        """Name in errors, in `rows_applied` and in metrics: a built-in's name, or class and digest."""
        return self.names[0] if self.builtin else payload.display_name_of(self.class_name, self.digest)

    @classmethod
    def from_proto(cls, info: registry_pb2.ProcessorInfo) -> ProcessorRef:
        """Convert from a message."""
        return cls(
            info.digest,
            tuple(info.names),
            info.builtin,
            info.python,
            info.dill,
            info.size_bytes,
            info.registered_at,
            info.owner,
            info.shared,
            info.quarantined,
            info.class_name,
            info.dialect,
        )


# A built-in's name ("thinking_budget"), a registered name ("team/ban-french"), a digest, a serialized string,
# the result of `register`, a program, or a processor itself, of any kind in `logitport.dialects`.
ProcessorLike = Union[str, ProcessorRef, type, object]


@dataclass(frozen=True)
class Request:
    """One sequence that is being generated (one sample: n=2 is two requests).

    Attributes:
        prompt_token_ids: ids of the prompt, without padding: a list, or another sequence, or a numpy array or torch
            tensor of integers, [n], on any device.
        output_token_ids: ids sampled so far, oldest first.
        processors: (processor, parameters) pairs, which run in this order. Parameters must be JSON data;
            tensors and arrays in them are sent as lists. A class is shipped in its present state.
        request_id: the engine's name for it; need not be unique.
        sampling_params: the engine's (temperature, extra_args, ...); must be JSON data.
        tenant: the engine's customer that sent the request; the trust domain of processors shipped with it.
        on_error: "abort" (a failing processor fails the request) or "skip" (its rows stay unchanged).
    """

    prompt_token_ids: TokenIds = ()
    output_token_ids: TokenIds = ()
    processors: Sequence[tuple[ProcessorLike, Mapping[str, Any]]] = ()
    request_id: str = ""
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = ""
    on_error: Literal["abort", "skip"] = "abort"

    def to_proto(self) -> common_pb2.Request:
        """Convert to a message.

        Raises:
            InvalidArgument, PayloadError: a field is invalid.
        """
        message = self.to_proto_without_history()
        set_history(message, self.history())
        return message

    def history(self) -> History:
        """Make a history of its ids. Raises InvalidArgument."""
        where = f"request {self.request_id!r}:"
        return History(
            int32_ids(self.prompt_token_ids, f"{where} prompt_token_ids"),
            int32_ids(self.output_token_ids, f"{where} output_token_ids"),
        )

    def to_proto_without_history(self) -> common_pb2.Request:
        """Convert to a message without token ids. Raises the errors of `to_proto`."""
        if self.on_error not in _ON_ERROR:
            raise InvalidArgument(f"on_error is {self.on_error!r}; write 'abort' or 'skip'")
        message = common_pb2.Request(
            sampling_params=_json_object(self.sampling_params, "sampling_params"), on_error=_ON_ERROR[self.on_error]
        )
        for name in ("request_id", "tenant"):
            try:
                setattr(message, name, getattr(self, name))
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; pass text ({error})") from error
        for processor, params in self.checked_processors():
            call = message.processors.add(params=_json_object(params, "parameters of", processor))
            call.processor.CopyFrom(name_processor(processor))
        return message

    def checked_processors(self) -> list[tuple[ProcessorLike, Mapping[str, Any]]]:
        """Return the (processor, parameters) pairs. Raises InvalidArgument if they are none."""
        try:
            return [(processor, params) for processor, params in self.processors]
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"request {self.request_id!r}: processors must be (processor, parameters) pairs ({error}); write "
                "(processor, {}) for one without parameters"
            ) from error


def message_of(request: Request) -> common_pb2.Request:
    """Call `Request.to_proto`. Raises InvalidArgument also for an object that is not a Request."""
    return checked(request).to_proto()


def checked(request: Request) -> Request:
    """Return the request. Raises InvalidArgument for an object that is not a Request."""
    if not isinstance(request, Request):
        raise InvalidArgument(f"an object of type {type(request).__name__} is not a request: pass a logitport.Request")
    return request


def set_history(message: common_pb2.Request, history: History) -> None:
    """Write a history into a message without one."""
    message.prompt_ids = history.prompt_token_ids.astype("<i4", copy=False).tobytes()
    message.output_ids = history.output_token_ids.astype("<i4", copy=False).tobytes()


def name_processor(processor: ProcessorLike) -> common_pb2.Processor:
    """Convert a processor to its message; a class, instance or program is shipped, unless it is a built-in.

    Raises:
        NotFound: the string is empty.
        PayloadError: the class cannot be serialized.
    """
    if isinstance(processor, ProcessorRef):
        if processor.builtin:
            return common_pb2.Processor(builtin=processor.names[0])
        return common_pb2.Processor(digest=processor.digest)
    if not isinstance(processor, str):
        builtin_name = vars(processor if isinstance(processor, type) else type(processor)).get("builtin_name")
        if builtin_name:
            return common_pb2.Processor(builtin=builtin_name)
        return common_pb2.Processor(payload=serialize(processor))
    if processor.lstrip().startswith("{"):
        return common_pb2.Processor(payload=processor)
    if _DIGEST.fullmatch(processor):
        return common_pb2.Processor(digest=processor)
    if "/" in processor:
        return common_pb2.Processor(name=processor)
    if not processor:
        raise NotFound("a processor's name is empty; write a built-in's name, such as 'disallowed_tokens'")
    return common_pb2.Processor(builtin=processor)


def _listed(value: Any) -> Any:
    """Convert what orjson does not: tensors, and arrays that are not contiguous."""
    array = tensors.on_host(value)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
    return array.tolist()


def _json_object(value: Mapping[str, Any], what: str, *of: object) -> bytes:
    """Serialize a mapping. `what` is its name in errors, followed by the objects `of`. Raises InvalidArgument."""
    try:
        text = orjson.dumps(value, _listed, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidArgument(f"{' '.join([what, *map(repr, of)])} cannot be written as JSON: {error}") from error
    if not text.startswith(b"{"):
        raise InvalidArgument(f"{' '.join([what, *map(repr, of)])}: pass a mapping, not {type(value).__name__}")
    return text
