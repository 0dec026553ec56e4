"""Parsing of messages of any size.

Protobuf holds the interpreter's lock while it parses and serializes: 5 ms for 78 MB of logits, 12 ms for half a million
empty submessages, which take 1 MB. So the number of fields of a large message is limited before it is parsed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from logitport.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor

_M = TypeVar("_M", bound=Message)

# Of a message with all its submessages. A chain of 64 processors for each of 1024 requests has 270,000.
MAX_FIELDS = 1 << 19
_MIN_FIELD_BYTES = 2

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def parse(kind: type[_M], data: bytes) -> _M:
    """Parse a message of any size.

    Raises:
        InvalidArgument: the bytes are not such a message.
        LimitExceeded: it has too many fields.
    """
    name = kind.DESCRIPTOR.name
    try:
        if len(data) > MAX_FIELDS * _MIN_FIELD_BYTES:
            _check_fields(memoryview(data), cast("Descriptor", kind.DESCRIPTOR))
        return kind.FromString(data)
    except (DecodeError, IndexError) as error:
        raise InvalidArgument(f"{len(data)} bytes are not a valid {name}: send a serialized {name}") from error


def _check_fields(data: memoryview, descriptor: Descriptor) -> None:
    """Raise LimitExceeded for too many fields, DecodeError or IndexError for invalid bytes.

    Source: https://protobuf.dev/programming-guides/encoding/
    """
    count = 0
    at, end, submessages = 0, len(data), _submessages(descriptor)
    outer: list[tuple[int, Mapping[int, Descriptor]]] = []
    while True:
        while at < end:
            count += 1
            if count > MAX_FIELDS:
                raise LimitExceeded(
                    f"the message has more than {MAX_FIELDS} fields, with those of its submessages; send fewer "
                    "requests at once"
                )
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length, at = _varint(data, at)
                submessage = submessages.get(tag >> 3)
                if submessage is None:
                    at += length
                else:
                    outer.append((end, submessages))
                    end, submessages = min(at + length, end), _submessages(submessage)
            elif wire_type == _VARINT:
                _, at = _varint(data, at)
            elif wire_type in (_FIXED64, _FIXED32):
                at += 8 if wire_type == _FIXED64 else 4
            else:
                raise DecodeError(f"wire type {wire_type}")  # a group: no message has one
        if at > end:
            raise DecodeError("a field is longer than its message")
        if not outer:
            return
        end, submessages = outer.pop()


def position_of(field: int, data: bytes) -> tuple[int, int]:
    """Return where the bytes of a string stand in a serialized message: start and end.

    The last field of this number counts, as when the message is parsed. Without one, both are 0.

    Raises:
        InvalidArgument: the bytes are no message.
    """
    view, at, found = memoryview(data), 0, (0, 0)
    try:
        while at < len(data):
            tag, at = _varint(view, at)
            wire_type = tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length, at = _varint(view, at)
                if tag >> 3 == field:
                    found = at, at + length
                at += length
            elif wire_type == _VARINT:
                _, at = _varint(view, at)
            elif wire_type in (_FIXED64, _FIXED32):
                at += 8 if wire_type == _FIXED64 else 4
            else:
                raise DecodeError(f"wire type {wire_type}")
    except (DecodeError, IndexError) as error:
        raise InvalidArgument(f"{len(data)} bytes are not a valid message: {error}") from error
    return found


@lru_cache(maxsize=256)
def _submessages(descriptor: Descriptor) -> Mapping[int, Descriptor]:
    """The types of the fields that hold messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a varint. Returns its value and the offset after it. Raises IndexError or DecodeError."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = 0
    for position in range(_MAX_VARINT_BYTES):
        byte = data[at + position]
        value |= (byte & 127) << 7 * position
        if byte < 128:
            return value, at + position + 1
    raise DecodeError("a varint of more than 10 bytes")
