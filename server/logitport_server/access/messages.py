"""Parsing of messages: small ones on the event loop, large ones later, on a thread of their caller's share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError, Message

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_session.parsing import parse

if TYPE_CHECKING:
    from collections.abc import Callable

_M = TypeVar("_M", bound=Message)

# Larger messages are parsed on a thread, because the event loop would wait for milliseconds.
SMALL_BYTES = 1 << 16
# Bytes of a message that needs no authentication.
MAX_OPEN_BYTES = 4096
# Health checks need no authentication: load balancers and orchestrators have no token. The service's other methods are
# not served: a caller without a token could keep any number of `Watch` streams open.
HEALTH = "/grpc.health."
OPEN = "/grpc.health.v1.Health/Check"
# The methods with messages of any size.
_LARGE = (
    "/logitport.v1.LogitProcessing/Apply",
    "/logitport.v1.ProcessorRegistry/Register",
)
# The method with messages that the session parses, of any size.
_UNPARSED = "/logitport.v1.LogitProcessing/Session"


class Unparsed:
    """A message that has not been parsed.

    Args:
        data: its bytes.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def deserializer(
    method: str, parse_small: Callable[[bytes], Any], count: Callable[[int], object] = lambda _: None
) -> Callable[[bytes], Any]:
    """Return the function with which gRPC converts the bytes of a method's messages, and which counts them.

    It returns a message, or an `Unparsed` if it is a session's, or is large and the method takes large messages. It
    raises LimitExceeded for other large messages, and InvalidArgument for bytes that are no message.
    """
    takes_large = method in _LARGE
    max_bytes = MAX_OPEN_BYTES if method == OPEN else SMALL_BYTES

    def deserialize(data: bytes) -> Any:
        count(len(data))
        if method == _UNPARSED:
            return Unparsed(data)
        if len(data) > max_bytes:
            if takes_large:
                return Unparsed(data)
            raise LimitExceeded(
                f"the message of {method.rpartition('/')[2]} has {len(data)} bytes; the limit is {max_bytes}: send less"
            )
        try:
            return parse_small(data)
        except DecodeError as error:
            raise InvalidArgument(f"{len(data)} bytes are not a valid message of {method}: {error}") from error

    return deserialize


def serializer(
    serialize: Callable[[Any], bytes], count: Callable[[int], object] = lambda _: None
) -> Callable[[Any], bytes]:
    """Return a function that serializes a message, unless it is serialized already, and counts its bytes."""

    def serialized(reply: Any) -> bytes:
        data: bytes = reply if isinstance(reply, bytes) else serialize(reply)
        count(len(data))
        return data

    return serialized


def parsed(kind: type[_M], message: _M | Unparsed) -> _M:
    """Return the message, parsed. Raises what `parse` raises."""
    return parse(kind, message.data) if isinstance(message, Unparsed) else message
