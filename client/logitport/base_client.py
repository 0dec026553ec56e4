"""Base of the synchronous and the asynchronous client: arguments, messages, replies and errors of unary calls."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from logitport import calls
from logitport.connection import Connection
from logitport.errors import PayloadNotAllowed
from logitport.request import ProcessorRef
from logitport_proto import processing_pb2_grpc, registry_pb2, registry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport.calls import ApplyResult
    from logitport.connection import Tls
    from logitport.request import ProcessorLike, Request

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Call(Generic[_Result]):
    """A unary call: a method of a stub, its message, and the function that converts its reply.

    Attributes:
        advice: follows the message of an error that shipped code is not allowed.
    """

    method: Any
    message: Any
    decode: Callable[[Any], _Result]
    advice: str = ""


class BaseClient:
    """A channel and the calls that both clients make. A subclass only sends a call, and closes the channel.

    Args:
        library: `grpc` or `grpc.aio`. The other arguments are those of `Client`.
    """

    def __init__(
        self, library: Any, target: str, token: str | None, tls: Tls | None, timeout: float, max_message_bytes: int
    ) -> None:
        self.target = target
        self.timeout = calls.seconds(timeout, "timeout")
        self._max_message_bytes = calls.count(max_message_bytes, "max_message_bytes", 1)
        self._closed = False
        self._connection = Connection.prepare(target, token, tls)
        self._channel = self._connection.channel(library, self._max_message_bytes)
        self._registry = registry_pb2_grpc.ProcessorRegistryStub(self._channel)
        self._processing = processing_pb2_grpc.LogitProcessingStub(self._channel)

    def _register(self, processor: ProcessorLike, name: str, **options: Any) -> Call[ProcessorRef]:
        message, not_lifted = calls.register_request(processor, name, **options)
        return Call(
            self._registry.Register,
            message,
            lambda reply: replace(_ref(reply), not_lifted=not_lifted),
            advice=f"; it is no program, because {not_lifted}" if not_lifted else "",
        )

    def _get(self, name: str) -> Call[ProcessorRef]:
        return Call(self._registry.Get, calls.message(registry_pb2.GetRequest, processor=name), _ref)

    def _list(self) -> Call[list[ProcessorRef]]:
        return Call(
            self._registry.List,
            registry_pb2.ListRequest(),
            lambda reply: list(map(ProcessorRef.from_proto, reply.processors)),
        )

    def _delete(self, name: str) -> Call[tuple[str, ...]]:
        message = calls.message(registry_pb2.DeleteRequest, processor=name)
        return Call(self._registry.Delete, message, lambda reply: tuple(reply.names))

    def _unquarantine(self, name: str) -> Call[ProcessorRef]:
        return Call(self._registry.Unquarantine, calls.message(registry_pb2.UnquarantineRequest, processor=name), _ref)

    def _apply(
        self, logits: Any, requests: Sequence[Request], num_tokens_in_batch: int, *, check: bool
    ) -> Call[ApplyResult]:
        message = calls.apply_request(logits, requests, num_tokens_in_batch)
        return Call(self._processing.Apply, message, partial(calls.apply_result, logits=logits, check=check))

    @contextmanager
    def _translated_errors(self, advice: str = "") -> Iterator[None]:
        """Raise LogitportError for a failed call, and for a call on a closed client.

        Args:
            advice: see `Call`.
        """
        if self._closed:
            raise calls.client_closed(self.target)
        try:
            yield
        except grpc.RpcError as error:
            translated = calls.translate(error, self.target, encrypted=self._connection.encrypted)
            if advice and isinstance(translated, PayloadNotAllowed):
                translated = PayloadNotAllowed(translated.message + advice)
            raise translated from None


def _ref(reply: Any) -> ProcessorRef:
    return ProcessorRef.from_proto(reply.processor)
