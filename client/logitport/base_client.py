"""Base of all clients: arguments, messages, replies and errors of unary calls."""

from __future__ import annotations

import random
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import grpc

from logitport import calls
from logitport.connection import Connection
from logitport.errors import (
    DeadlineExceeded,
    LogitportError,
    NotAuthenticated,
    PayloadNotAllowed,
    ServerUnavailable,
    StaleProcessorWarning,
    SuspectCodeWarning,
)
from logitport.output import ProcessorOutput
from logitport.request import ProcessorRef
from logitport.servers import Servers
from logitport_proto import admin_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport.calls import ApplyResult, LogitsT
    from logitport.connection import Tls
    from logitport.request import ProcessorLike, Request
    from logitport.servers import Server
    from logitport.targets import Target

_Result = TypeVar("_Result")

# Calls that another server may receive after one server may have received them already.
_IDEMPOTENT = ("Get", "List", "Apply", "GetOutput")

# How long a call that has failed at one server is sent to others. It is longer than gRPC's pause before it connects
# again: in a rolling restart, a server may be back for less than that pause when the next one ends.
_ELSEWHERE_SECONDS = 3.0
_FIRST_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.02, 0.5


@dataclass(frozen=True)
class Call(Generic[_Result]):
    """A unary call: a method of a service, its message, and the function that converts its reply.

    Attributes:
        advice: follows the message of an error that shipped code is not allowed.
    """

    service: Literal["admin", "registry", "processing"]
    method: str
    message: Any
    decode: Callable[[Any], _Result]
    advice: str = ""

    def on(self, server: Server) -> Any:
        """Return the method of a server's stub."""
        return getattr(getattr(server, self.service), self.method)


class BaseClient:
    """The servers, and the calls that all clients make. A subclass only sends a call, and closes the channels.

    Args:
        target, token, tls, timeout, max_message_bytes: see `Client`.
    """

    def __init__(
        self, target: Target, token: str | None, tls: Tls | None, timeout: float, max_message_bytes: int
    ) -> None:
        self.timeout = calls.seconds(timeout, "timeout")
        self._max_message_bytes = calls.count(max_message_bytes, "max_message_bytes", 1)
        self._closed = False
        self._connection = Connection.prepare(token, tls)
        self._servers = Servers.of(target, self._connection, self._max_message_bytes)
        self.target = self._servers.text

    def _register(self, processor: ProcessorLike, name: str, **options: Any) -> Call[ProcessorRef]:
        """Make the call of `register`, which calls this directly: a warning has the line of the caller's caller."""
        message, shipped = calls.register_request(processor, name, **options)
        if shipped.changed:
            warnings.warn(_earlier_state(processor, shipped.changed), StaleProcessorWarning, stacklevel=3)
        for line in shipped.suspect:
            warnings.warn(line, SuspectCodeWarning, stacklevel=3)
        not_lifted = shipped.not_lifted
        return Call(
            "registry",
            "Register",
            message,
            lambda reply: replace(_ref(reply), not_lifted=not_lifted),
            advice=f"; it is no program, because {not_lifted}" if not_lifted else "",
        )

    def _get(self, name: str) -> Call[ProcessorRef]:
        return Call("registry", "Get", calls.message(registry_pb2.GetRequest, processor=name), _ref)

    def _list(self) -> Call[list[ProcessorRef]]:
        return Call(
            "registry",
            "List",
            registry_pb2.ListRequest(),
            lambda reply: list(map(ProcessorRef.from_proto, reply.processors)),
        )

    def _delete(self, name: str) -> Call[tuple[str, ...]]:
        message = calls.message(registry_pb2.DeleteRequest, processor=name)
        return Call("registry", "Delete", message, lambda reply: tuple(reply.names))

    def _logs(self, name: str) -> Call[list[ProcessorOutput]]:
        message = calls.message(registry_pb2.GetOutputRequest, processor=name)
        return Call("registry", "GetOutput", message, lambda reply: list(ProcessorOutput.all_from_proto(reply.outputs)))

    def _unquarantine(self, name: str) -> Call[ProcessorRef]:
        message = calls.message(admin_pb2.UnquarantineRequest, processor=name)
        return Call("admin", "Unquarantine", message, _ref)

    def _apply(
        self, logits: LogitsT, requests: Sequence[Request], num_tokens_in_batch: int, *, check: bool
    ) -> Call[ApplyResult[LogitsT]]:
        message = calls.apply_request(logits, requests, num_tokens_in_batch)
        return Call("processing", "Apply", message, partial(calls.apply_result, logits=logits, check=check))

    def _any_server(self) -> Server:
        """Return a server for a unary call. Raises ServerUnavailable if the client is closed."""
        if self._closed:
            raise calls.client_closed(self.target)
        return self._servers.any()

    def _may_go_elsewhere(self, call: Call[Any], error: BaseException) -> bool:
        """Whether a call that has failed with this error may be sent to another server."""
        return (
            not (self._servers.single or self._closed)
            and isinstance(error, (ServerUnavailable, NotAuthenticated))
            and (call.method in _IDEMPOTENT or isinstance(error, NotAuthenticated) or not error.was_connected)
        )

    @contextmanager
    def _translated_errors(self, server: Server, advice: str) -> Iterator[None]:
        """Raise LogitportError for a failed call, and for a call on a closed client.

        Args:
            server: the server that is called.
            advice: see `Call`.
        """
        if self._closed:
            raise calls.client_closed(self.target)
        try:
            yield
        except grpc.RpcError as error:
            # Not a local variable: the frame that raises an exception must not refer to it. That cycle would keep the
            # client, and its connections, until the next garbage collection.
            raise self._translated(error, server, advice) from None
        self._servers.worked(server)

    def _translated(self, error: grpc.RpcError, server: Server, advice: str) -> LogitportError:
        translated = calls.translate(error, server.target, encrypted=self._connection.encrypted)
        if isinstance(translated, (ServerUnavailable, DeadlineExceeded, NotAuthenticated)):
            self._servers.failed(server)
        if advice and isinstance(translated, PayloadNotAllowed):
            return PayloadNotAllowed(translated.message + advice)
        return translated


class Elsewhere:
    """Decides whether and when a call that has failed at one server is sent to another one.

    Not tenacity: its objects refer to each other and to the exception, whose frames refer to the client. A client that
    is dropped would keep its connections until the next garbage collection.

    Args:
        client: sends the call.
        call: the call, which has failed once.
    """

    def __init__(self, client: BaseClient, call: Call[Any]) -> None:
        self._client = client
        self._call = call
        self._deadline = time.monotonic() + min(_ELSEWHERE_SECONDS, client.timeout)
        self._longest_pause = _FIRST_BACKOFF_SECONDS
        # Each server may refuse the token once: those of a fleet do not read changed tokens at one moment.
        self._refusals = 1

    def pause_after(self, error: LogitportError) -> float | None:
        """Return the seconds to wait before the next attempt, after one has failed; None if there is none."""
        self._refusals += isinstance(error, NotAuthenticated)
        if (
            self._refusals >= len(self._client._servers)
            or not self._client._may_go_elsewhere(self._call, error)
            or time.monotonic() >= self._deadline
        ):
            return None
        pause = random.uniform(0.0, self._longest_pause)  # noqa: S311 - no secret
        self._longest_pause = min(2 * self._longest_pause, _MAX_BACKOFF_SECONDS)
        return pause


def _earlier_state(processor: Any, changed: str) -> str:
    return (
        f"{processor.__qualname__} was shipped before, and {changed} has changed since: the state of that time is "
        "registered; pass refresh=True to ship the present state"
    )


def _ref(reply: Any) -> ProcessorRef:
    return ProcessorRef.from_proto(reply.processor)
