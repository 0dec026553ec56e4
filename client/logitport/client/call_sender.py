"""Unary calls of a client: their messages, their servers, and their errors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import grpc

from logitport.errors import (
    AccessDenied,
    LogitportError,
    PayloadError,
    ProcessorWarning,
    ServerUnavailable,
)
from logitport.servers import trace_context
from logitport.servers.channels import Servers
from logitport.servers.connection import Connection
from logitport.shipping import calls
from logitport.shipping.request import ProcessorRef
from logitport.system.backoff import Backoff
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.servers.channels import ServerChannel
    from logitport.servers.connection import Tls
    from logitport.servers.targets import Target
    from logitport.shipping.request import ProcessorLike

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

    def on(self, server: ServerChannel) -> Any:
        """Return the method of a server's stub."""
        return getattr(getattr(server, self.service), self.method)


class CallSender:
    """Sends the unary calls of a client, and closes its channels. Safe to use from several threads.

    Args:
        target, token, tls, timeout, max_message_bytes: see `Client`.

    Attributes:
        servers: those that the target names.
        connection: settings of the channels and calls.
        timeout: longest duration of one call, in seconds.
        max_message_bytes: the largest message in either direction.
        closed: whether the client is closed. No call is sent, and no session opens or reconnects any more.

    Raises:
        InvalidArgument, ServerUnavailable: see `Client`.
    """

    def __init__(
        self, target: Target, token: str | None, tls: Tls | None, timeout: float, max_message_bytes: int
    ) -> None:
        self.timeout = calls.seconds(timeout, "timeout")
        self.max_message_bytes = calls.count(max_message_bytes, "max_message_bytes", 1)
        self.closed = False
        self.connection = Connection.prepare(token, tls)
        self.servers = Servers.of(target, self.connection, self.max_message_bytes)

    def result(self, call: Call[_Result]) -> _Result:
        """Send a call to any server, and return its result. Raises LogitportError."""
        return call.decode(self.reply(call))

    def reply(self, call: Call[Any]) -> Any:
        """Send a call to any server, and return the reply. If it fails there, it may go to others.

        Raises:
            LogitportError: the call failed at each server that it may use, or the client is closed.
        """
        self.check_open()
        server = self.servers.any()
        try:
            return self.send(server, call)
        except LogitportError as error:
            if not self._may_go_elsewhere(call, error):
                raise
            return self._send_elsewhere(server, call)

    def send(self, server: ServerChannel, call: Call[Any]) -> Any:
        """Send a call to this server, and return the reply. Raises LogitportError."""
        self.check_open()
        metadata = self.connection.metadata + trace_context.metadata()
        try:
            reply = call.on(server)(call.message, timeout=self.timeout, metadata=metadata)
        except grpc.RpcError as error:
            # Not a local variable: the frame that raises an exception must not refer to it. That cycle would keep the
            # client, and its connections, until the next garbage collection.
            raise self._translated(error, server, call.advice) from None
        self.servers.worked(server)
        return reply

    def check_open(self) -> None:
        """Raise ServerUnavailable if the client is closed."""
        if self.closed:
            raise calls.client_closed(self.servers.text)

    def close(self) -> None:
        """Send no call any more, and close the channels."""
        self.closed = True
        for channel in self.servers.close():
            channel.close()

    def _send_elsewhere(self, failed: ServerChannel, call: Call[Any]) -> Any:
        """Send a call that has failed at one server to others, until one replies."""
        backoff = Backoff(_FIRST_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS, seconds=min(_ELSEWHERE_SECONDS, self.timeout))
        # Each server may refuse the token once: the servers of a fleet read changed tokens at different moments.
        refusals = 1
        while True:
            self.servers.refresh()
            failed = self.servers.any(excluded=failed)
            try:
                return self.send(failed, call)
            except LogitportError as error:
                refusals += error.code == AccessDenied.NOT_AUTHENTICATED
                if refusals >= len(self.servers) or not self._may_go_elsewhere(call, error) or not backoff.wait():
                    raise

    def _may_go_elsewhere(self, call: Call[Any], error: LogitportError) -> bool:
        """Whether a call that has failed with this error may be sent to another server."""
        return not (self.servers.single or self.closed) and (
            error.code == AccessDenied.NOT_AUTHENTICATED
            or (
                isinstance(error, ServerUnavailable)
                and not error.timed_out
                and (call.method in _IDEMPOTENT or not error.was_connected)
            )
        )

    def _translated(self, error: grpc.RpcError, server: ServerChannel, advice: str) -> LogitportError:
        translated = calls.translate(error, server.target, encrypted=self.connection.encrypted)
        if isinstance(translated, ServerUnavailable) or translated.code == AccessDenied.NOT_AUTHENTICATED:
            self.servers.failed(server)
        if advice and translated.code == PayloadError.NOT_ALLOWED:
            return PayloadError(translated.message + advice, code=PayloadError.NOT_ALLOWED)
        return translated


def register_call(processor: ProcessorLike, name: str, **options: Any) -> Call[ProcessorRef]:
    """Build the Register call. `register` must call this function directly: warnings use `stacklevel=3`."""
    message, shipped = calls.register_request(processor, name, **options)
    for line in shipped.suspect:
        warnings.warn(line, ProcessorWarning, stacklevel=3)
    not_lifted = shipped.not_lifted
    return Call(
        "registry",
        "Register",
        message,
        lambda reply: replace(_ref(reply), not_lifted=not_lifted),
        advice=f"; it is no program, because {not_lifted}" if not_lifted else "",
    )


def get_call(name: str) -> Call[ProcessorRef]:
    """Make the call of `processor`."""
    return Call("registry", "Get", calls.message(registry_pb2.GetRequest, processor=name), _ref)


def list_call() -> Call[list[ProcessorRef]]:
    """Make the call of `processors`."""
    return Call(
        "registry",
        "List",
        registry_pb2.ListRequest(),
        lambda reply: list(map(ProcessorRef.from_proto, reply.processors)),
    )


def delete_call(name: str) -> Call[tuple[str, ...]]:
    """Make the call of `delete`."""
    message = calls.message(registry_pb2.DeleteRequest, processor=name)
    return Call("registry", "Delete", message, lambda reply: tuple(reply.names))


def _ref(reply: Any) -> ProcessorRef:
    return ProcessorRef.from_proto(reply.processor)
