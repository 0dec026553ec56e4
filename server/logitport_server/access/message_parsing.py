"""Parsing of messages: small ones on the event loop, others in the processes of their callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from logitport.errors import InvalidArgument, LimitExceeded
from logitport.system.frame_limits import OPEN_MESSAGE_BYTES, SMALL_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

# Health checks need no authentication: load balancers and orchestrators have no token. The service's other methods are
# not served: a caller without a token could keep any number of `Watch` streams open.
HEALTH = "/grpc.health."
OPEN = "/grpc.health.v1.Health/Check"
# The methods with messages of any size, which the processes of their callers parse.
# The unary methods with messages of any size.
LARGE = ("/logitport.v1.LogitProcessing/Apply", "/logitport.v1.ProcessorRegistry/Register")
_UNPARSED = (
    "/logitport.v1.LogitProcessing/Apply",
    "/logitport.v1.LogitProcessing/Session",
    "/logitport.v1.ProcessorRegistry/Register",
)


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
    """Return the function that converts the bytes of a method's messages for gRPC, and counts them.

    It returns a message, or an `Unparsed` if the method's messages may have any size. It raises LimitExceeded for other
    large messages, and InvalidArgument for bytes that are no message.
    """
    is_parsed = method not in _UNPARSED
    max_bytes = OPEN_MESSAGE_BYTES if method == OPEN else SMALL_MESSAGE_BYTES

    def deserialize(data: bytes) -> Any:
        count(len(data))
        if not is_parsed:
            return Unparsed(data)
        if len(data) > max_bytes:
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
