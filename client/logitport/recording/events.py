"""Events of a recording: serialized, one after another, and what their fields mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from logitport.calls import unpack_int32
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_proto.recording_pb2 import RecordedEvent, RecordedProcessor, RequestBegan

# Of one event. A step with a mask or with biases of whole rows is smaller.
MAX_EVENT_BYTES = 16 << 20
_TAG = 0x0A  # of Recording.events


def encode(event: RecordedEvent) -> bytes:
    """Serialize an event with its tag and length, so that one after another they are a `Recording`.

    Raises:
        ValueError: it is too large.
    """
    data = event.SerializeToString()
    length = len(data)
    if length > MAX_EVENT_BYTES:
        raise ValueError(f"an event has {length} bytes; at most {MAX_EVENT_BYTES} are recorded")
    head = bytearray((_TAG,))
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


def split(data: bytes) -> Iterator[bytes]:
    """Yield the serialized events of a `Recording`. Parsed as a whole, forged ones would take any memory.

    Raises:
        InvalidArgument: these are no events.
    """
    at = 0
    while at < len(data):
        if data[at] != _TAG:
            raise InvalidArgument("its content is no event")
        length, begin = _length_at(data, at + 1)
        at = begin + length
        if at > len(data):
            raise InvalidArgument("an event ends after its member")
        yield data[begin:at]


def _length_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the length that stands there, and where the event begins."""
    length = 0
    for shift, byte in enumerate(data[at : at + 5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return length, at + shift + 1
    raise InvalidArgument("an event has no length")


def display_name(processor: RecordedProcessor) -> str:
    """Return a name for display."""
    return processor.builtin or processor.class_name or processor.name or processor.digest[:12] or "(unknown)"


def history_of(began: RequestBegan) -> list[int]:
    """Return the ids of a request before its next step."""
    return [*unpack_int32(began.request.prompt_ids).tolist(), *unpack_int32(began.request.output_ids).tolist()]


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError if it is another value."""
    value = orjson.loads(data or b"{}")
    if not isinstance(value, dict):
        raise ValueError(f"{data!r:.100} is no JSON object")
    return value
