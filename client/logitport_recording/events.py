"""Serializes the events of a recording, so that they follow one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_proto.recording_pb2 import RecordedEvent

# Of one event. A step with a mask or with biases of whole rows is smaller.
MAX_EVENT_BYTES = 16 << 20
EVENT_TAG = 0x0A  # of Recording.events


def encode(event: RecordedEvent) -> bytes:
    """Serialize an event with its tag and length, so that one after another they are a `Recording`.

    Raises:
        ValueError: it is too large.
    """
    data = event.SerializeToString()
    length = len(data)
    if length > MAX_EVENT_BYTES:
        raise ValueError(f"an event has {length} bytes; at most {MAX_EVENT_BYTES} are recorded")
    head = bytearray((EVENT_TAG,))
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data
