"""Payloads planted in any field of a message, and the traps that show whether one was unpickled."""

from __future__ import annotations

import json
import pickle
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

VOCAB = 64
TEXT, BYTES = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES
ZERO = bytes(4)
REQUEST: dict[str, Any] = {
    "request_id": "r",
    "processors": [{"processor": {"builtin": "disallowed_tokens"}, "params": b'{"token_ids": [3]}'}],
    "sampling_params": b"{}",
    "tenant": "t",
}
LOGITS = {"datatype": "FP32", "shape": [1, VOCAB], "raw": bytes(4 * VOCAB)}
# Valid frames, in which a payload is planted.
FRAMES: dict[str, dict[str, Any]] = {
    "open": {"vocab_size": VOCAB, "datatype": "FP32"},
    "add": {"requests": [{"request": REQUEST}]},
    "remove": {"slots": ZERO, "generations": ZERO},
    "step": {"slots": ZERO, "generations": ZERO, "base_lengths": ZERO, "history_crcs": ZERO, "row_requests": ZERO},
    "logits": {"logits": LOGITS},
    "open_region": {"size_bytes": 4096},
}


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


@contextmanager
def set_traps(folder: Path) -> Iterator[list[bytes]]:
    """Yield a pickle that creates a file when it is loaded, in each form in which it can be sent.

    Fails at the end of the context if the file exists.
    """
    trace = folder / "unpickled"
    ascii_pickle, binary_pickle = pickle.dumps(Touch(trace), 0), pickle.dumps(Touch(trace), 4)
    for data in (ascii_pickle, binary_pickle):
        pickle.loads(data)
        assert trace.exists(), "the trap does not work"
        trace.unlink()
    yield [
        json.dumps({"callable": binary_pickle.hex()}).encode(),
        binary_pickle.hex().encode(),
        ascii_pickle,
        binary_pickle,
    ]
    assert not trace.exists(), "the server unpickled a payload that it must not read"


def places(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the path of every text or bytes field."""
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from ((field, *rest) for rest in places(field.message_type))
        elif field.type in (TEXT, BYTES):
            yield (field,)


def plant(message: Message, place: tuple[FieldDescriptor, ...], trap: bytes) -> bool:
    """Set the field to the trap. Returns False if the field is text and the trap is not."""
    value: Any = trap
    if place[-1].type == TEXT:
        try:
            value = trap.decode("ascii")
        except UnicodeDecodeError:
            return False
    holder: Any = message
    for field in place[:-1]:
        inner = getattr(holder, field.name)
        holder = (inner[0] if inner else inner.add()) if field.is_repeated else inner
        if not field.is_repeated:
            holder.SetInParent()
    if place[-1].is_repeated:
        getattr(holder, place[-1].name).append(value)
    else:
        setattr(holder, place[-1].name, value)
    return True


def frame_places() -> list[tuple[FieldDescriptor, ...]]:
    """Return the path of every text or bytes field of a frame."""
    return list(places(processing_pb2.SessionRequest.DESCRIPTOR))


def place_name(place: tuple[FieldDescriptor, ...]) -> str:
    """Return the path of a field as text."""
    return ".".join(field.name for field in place)


def frames_before(kind: str) -> list[str]:
    """Return the frames that must precede one of this kind, so that the server reads it."""
    return [name for name in ("add", "step") if kind in ("step", "logits", "remove") and name != kind]
