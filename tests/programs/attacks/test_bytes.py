"""Hostile bytes: a program has one form in bytes, and decoding takes bounded time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest

from logitport.errors import InvalidArgument, LimitExceeded, LogitportError
from logitport_programs.program import MAX_BYTES, Program, Value
from logitport_programs.types import Element
from logitport_programs.verifier import verify
from logitport_proto import program_pb2
from tests.programs.attacks.build import LOGITS, SOUND, encoded, field, message, varint

DATA = SOUND.to_bytes()
LOGITS_BYTES = field(1, b"logits")
NEGATE_BYTES = field(1, b"negate") + field(2, varint(0))
ADD_BYTES = field(1, b"add") + field(2, varint(0) + varint(1))


def test_the_bytes_written_by_hand_are_those_of_the_encoder() -> None:
    """Otherwise the cases below would be refused for another reason."""
    assert message(LOGITS_BYTES, NEGATE_BYTES, ADD_BYTES, name=b"Sound") == DATA
    verify(Program.from_bytes(DATA))


OTHER_FORMS = {
    "an unknown field": DATA + field(100, 1),
    "an unknown field of a value": message(LOGITS_BYTES + field(99, b"x"), NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "fields in another order": DATA[2:] + DATA[:2],
    "fields of a value in another order": message(
        LOGITS_BYTES, field(2, varint(0)) + field(1, b"negate"), ADD_BYTES, name=b"Sound"
    ),
    "a field twice": field(1, 1) + DATA,
    "a field of a value twice": message(field(1, b"exp") + LOGITS_BYTES, NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "an overlong varint": b"\x08" + varint(1, least=2) + DATA[2:],
    "an overlong length": field(1, 1) + b"\x12" + varint(5, least=3) + b"Sound" + DATA[9:],
    "an overlong tag": varint(8, least=2) + DATA[1:],
    "a version of more than 32 bits": b"\x08" + varint(1 | 1 << 32) + DATA[2:],
    "inputs that are not packed": message(LOGITS_BYTES, field(1, b"negate") + field(2, 0), ADD_BYTES, name=b"Sound"),
    "inputs in two parts": message(
        LOGITS_BYTES, NEGATE_BYTES, field(1, b"add") + field(2, varint(0)) + field(2, varint(1)), name=b"Sound"
    ),
    "an empty list of inputs": message(LOGITS_BYTES + field(2, b""), NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "a default that is written": DATA + field(3, 0),
    "an axis of 0 that is written": message(LOGITS_BYTES + field(5, 0), NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "a flag that is 2": message(LOGITS_BYTES + field(10, 2), NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "a shape without the flag": message(LOGITS_BYTES + field(4, b""), NEGATE_BYTES, ADD_BYTES, name=b"Sound"),
    "NaN with a payload": encoded(lambda proto: proto.values[0].MergeFromString(b"\x41" + b"\1\0\0\0\0\0\xf0\x7f")),
    "a group": DATA + b"\xa3\x06\xa4\x06",
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_another_form_of_the_bytes(name: str) -> None:
    """Two digests of one program would get around decisions about the digest, such as a refusal."""
    data = OTHER_FORMS[name]
    assert data != DATA
    with pytest.raises(InvalidArgument):
        verify(Program.from_bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        DATA + b"\0",
        DATA + b"\x07",
        DATA[:-1],
        b"\x08" + b"\xff" * 10,
        field(1, 1) + b"\x2a" + varint(2**31 - 1),
        field(1, 1) + b"\x2a" + varint(2**63),
        field(1, 1) + field(2, b"\xff\xfe"),
        DATA + b"\xa3\x06" * 200_000,
    ],
    ids=["zero", "tag", "cut", "varint", "length", "huge length", "utf-8", "nested groups"],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="are not a program"):
        Program.from_bytes(data)


def test_a_nan_has_one_form() -> None:
    for bits in (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF):
        (number,) = struct.unpack("<d", struct.pack("<Q", bits))
        value = Value("full", element=Element.LOGITS, shape=(), number=number)
        data = Program("NaN", (LOGITS, value, Value("add", (0, 1)))).to_bytes()
        with pytest.raises(InvalidArgument, match=r"the number must not be NaN|not the canonical form"):
            verify(Program.from_bytes(data))


def test_a_negative_zero_is_not_a_zero() -> None:
    """It is another number, which `divide` shows, so that its program has another digest."""
    made = [
        Program("Zero", (LOGITS, Value("full", element=Element.LOGITS, shape=(), number=zero), Value("add", (0, 1))))
        for zero in (0.0, -0.0)
    ]
    assert made[0].digest != made[1].digest
    for one in made:
        assert Program.from_bytes(one.to_bytes()).digest == one.digest
        verify(Program.from_bytes(one.to_bytes()))


def full_of(part: bytes) -> bytes:
    return field(1, 1) + part * ((MAX_BYTES - 2) // len(part))


INPUTS = 4_000_000
BOMBS = {
    "values": full_of(field(5, b"")),
    "parameters": full_of(field(4, b"")),
    "sizes": field(1, 1) + field(5, field(4, b"") * ((MAX_BYTES - 20) // 2)),
    "inputs": field(1, 1) + field(5, field(2, bytes(INPUTS))),
    "inputs that are not packed": field(1, 1) + field(5, field(2, 0) * ((MAX_BYTES - 20) // 2)),
    "a name": field(1, 1) + field(2, b"a" * (MAX_BYTES - 20)),
    "an operator": message(field(1, b"a" * (MAX_BYTES - 20))),
    "data": message(field(1, b"logits") + field(12, bytes(MAX_BYTES - 40))),
    "names of fields": full_of(field(99, b"")),
    "the same name again": full_of(field(2, b"")),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.slow
def test_four_megabytes_of_hostile_bytes(name: str) -> None:
    """Values are counted before an object is made of each. Protobuf itself takes up to 264 MB and 0.2 s for these."""
    data = BOMBS[name]
    assert MAX_BYTES - 200_000 < len(data) <= MAX_BYTES
    tracemalloc.start()
    try:
        with pytest.raises((InvalidArgument, LimitExceeded)) as refused:
            verify(Program.from_bytes(data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300
    assert peak < 4 * MAX_BYTES
    begin = time.process_time()
    program_pb2.Program.FromString(data)
    parsed = time.process_time()
    with pytest.raises((InvalidArgument, LimitExceeded)):
        verify(Program.from_bytes(data))
    assert time.process_time() - parsed < 0.5 + 4 * (parsed - begin)


def test_one_byte_too_many() -> None:
    with pytest.raises(LogitportError, match=f"a program of {MAX_BYTES + 1} bytes; the limit is {MAX_BYTES}"):
        Program.from_bytes(field(1, 1) + bytes(MAX_BYTES - 1))
