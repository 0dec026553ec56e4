"""Bytes of programs that no encoder writes."""

from __future__ import annotations

from typing import Any

from logitport_programs.program import Program, Value
from logitport_programs.types import ONE, VOCAB, Element, Size
from logitport_proto import program_pb2

LOGITS = Value("logits")
SOUND = Program("Sound", (LOGITS, Value("negate", (0,)), Value("add", (0, 1))))


def varint(number: int, *, least: int = 1) -> bytes:
    """A varint of at least this many bytes: more than it needs are overlong."""
    data = []
    while number or len(data) < least:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data[:-1], data[-1] & 0x7F])


def field(number: int, content: bytes | int) -> bytes:
    """A field of a message: a varint, or bytes with their length."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*values: bytes, name: bytes = b"") -> bytes:
    """The bytes of a program, of the bytes of its values."""
    named = field(2, name) if name else b""
    return field(1, 1) + named + b"".join(field(5, value) for value in values)


def encoded(change: Any) -> bytes:
    """The sound program as a changed message."""
    proto = program_pb2.Program.FromString(SOUND.to_bytes())
    change(proto)
    return bytes(proto.SerializeToString(deterministic=True))


def to_result(*values: Value) -> Program:
    """A program of the logits, of these values, and of a result of logits[rows, vocab] that reads the last one."""
    last = len(values)
    rest = [
        Value("cast", (last,), element=Element.LOGITS),
        Value("amax", (last + 1,), axis=1, flag=True),
        Value("add", (0, last + 2)),
    ]
    return Program("Hostile", (LOGITS, *values, *rest))


__all__ = ["LOGITS", "ONE", "SOUND", "VOCAB", "Size", "encoded", "field", "message", "to_result", "varint"]
