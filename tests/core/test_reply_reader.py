"""The compiled core reads replies to steps as protobuf does, and leaves to Python what it does not accept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.errors import LogitportError, StateLost, to_proto
from logitport.session.steps.step_reply import CompiledReply, ReplyReader
from logitport_proto import common_pb2, processing_pb2
from tests.core.edits_strategies import batches

if TYPE_CHECKING:
    from logitport.core.edits import Edits

pytestmark = pytest.mark.usefixtures("both")
SEQ = 300
INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.sampled_from(["", "ban", "no_repeat_ngram", "Ban (sha256:1a2b3c4d5e6f)", "ünïcode"])


def int32(values: list[int]) -> bytes:
    return np.array(values, "<i4").tobytes()


POSITIVE = st.integers(0, 2**31 - 1)
EVENT = st.builds(
    common_pb2.Event,
    slot=POSITIVE,
    processor=NAMES,
    name=NAMES,
    position=POSITIVE,
    values=st.binary(max_size=5),
    left_out=POSITIVE,
)


@st.composite
def replies(draw: st.DrawFn) -> tuple[processing_pb2.SessionResponse, Edits, int, int]:
    """A usual reply, its edits, the number of rows, and the width of the logits."""
    edits, num_rows, width = draw(batches(ascending=True))
    applied = st.builds(common_pb2.RowsApplied, processor=NAMES, display_name=NAMES, rows=st.integers(0, 2**31 - 1))
    step_edits = processing_pb2.StepEdits(
        edits=edits.to_proto(),
        applied=draw(st.lists(applied, max_size=4)),
        all_denied_rows=int32(draw(st.lists(INT32, max_size=3))),
        ended_admissions=draw(st.integers(0, 2**31 - 1)),
        should_move=draw(st.booleans()),
        events=draw(st.lists(EVENT, max_size=3)),
    )
    return processing_pb2.SessionResponse(seq=SEQ, edits=step_edits), edits, num_rows, width


def read_message(data: bytes, num_rows: int, width: int) -> tuple[Any, ...] | None:
    """Read a reply in Python. Returns None if it is wrong, or has more than edits, counts and events."""
    try:
        response = processing_pb2.SessionResponse.FromString(data)
    except DecodeError:
        return None
    if response.seq != SEQ or not response.HasField("edits"):
        return None
    reply = response.edits
    table = cast("Any", SimpleNamespace(lost={}, has_programs=False))
    content = cast("Any", SimpleNamespace(handles=[], rows=range(num_rows)))
    try:
        answer = ReplyReader(table, width, "FP32").read(content, reply)
    except LogitportError:
        return None
    if answer.logits_rows or reply.failures:
        return None
    result = answer.result
    return (
        answer.events or None,
        answer.edits.to_columns(),
        result.rows_applied,
        result.all_denied_rows,
        reply.ended_admissions,
        reply.should_move,
    )


def read_compiled(data: bytes, num_rows: int, width: int) -> tuple[Any, ...] | None:
    reply = compiled.core.ReplyReader(width, compiled.core.Datatype.FP32).read(data, SEQ, num_rows)
    if reply is None:
        return None
    return (
        CompiledReply(reply).events or None,
        reply.columns,
        reply.rows_applied,
        reply.all_denied_rows,
        reply.ended_admissions,
        reply.should_move,
    )


@given(reply=replies())
def test_usual_replies(reply: tuple[processing_pb2.SessionResponse, Edits, int, int]) -> None:
    message, edits, num_rows, width = reply
    found = read_compiled(message.SerializeToString(), num_rows, width)
    assert found is not None
    assert found[1] == edits.to_columns()
    assert found == read_message(message.SerializeToString(), num_rows, width)


def field(number: int, wire_type: int, value: bytes) -> bytes:
    return bytes([number << 3 | wire_type]) + value


def delimited(number: int, data: bytes) -> bytes:
    return field(number, 2, varint(len(data)) + data)


def varint(value: int, extra: int = 0) -> bytes:
    """A varint, with more bytes than are needed."""
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    for _ in range(extra):
        encoded[-1] |= 128
        encoded.append(0)
    return bytes(encoded)


VARINTS = st.one_of(
    st.builds(varint, st.sampled_from([0, 1, 2, 127, 128, SEQ, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1])),
    st.builds(varint, st.integers(0, 300), st.integers(0, 10)),
    st.sampled_from([b"\x80", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x01"]),
)
SMALL_DATA = st.one_of(st.binary(max_size=9), st.just(b"\xff\xfe"), st.lists(INT32, max_size=2).map(int32))
ANY_FIELD = st.one_of(
    st.builds(lambda number, value: field(number, 0, value), st.integers(0, 15), VARINTS),
    st.builds(delimited, st.integers(0, 15), SMALL_DATA),
    st.builds(lambda number, size, data: field(number, 2, size + data), st.integers(0, 15), VARINTS, SMALL_DATA),
    st.builds(field, st.integers(0, 15), st.integers(1, 7), SMALL_DATA),
    st.just(b"\x88\x80\x00\x01"),  # a tag of more bytes than it needs
    st.just(varint(16 << 3) + b"\x01"),
)


@given(reply=replies(), added=st.lists(st.tuples(st.integers(0, 4), st.booleans(), ANY_FIELD), max_size=3))
def test_replies_with_other_fields(reply: Any, added: list[tuple[int, bool, bytes]]) -> None:
    """Fields of any kind, in the reply, in its edits, or in another message of it; before the others or after them."""
    message, _, num_rows, width = reply
    parts = [b"", message.edits.edits.SerializeToString(), b"", b"", b""]
    rest = processing_pb2.StepEdits()
    rest.CopyFrom(message.edits)
    rest.ClearField("edits")
    if rest.applied:
        parts[2] = rest.applied[-1].SerializeToString()
        del rest.applied[-1]
    if rest.events:
        parts[4] = rest.events[-1].SerializeToString()
        del rest.events[-1]
    parts[3] = rest.SerializeToString()
    for place, first, data in added:
        parts[place] = data + parts[place] if first else parts[place] + data
    body = delimited(1, parts[1]) + parts[3] + delimited(4, parts[2])
    if message.edits.events:
        body += delimited(9, parts[4])
    data = field(1, 0, varint(SEQ)) + delimited(5, body) + parts[0]
    found = read_compiled(data, num_rows, width)
    assert found is None or found == read_message(data, num_rows, width)


@given(reply=replies(), changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), cut=INT32)
def test_replies_with_changed_bytes(reply: Any, changes: list[tuple[int, int]], cut: int) -> None:
    message, _, num_rows, width = reply
    data = bytearray(message.SerializeToString())
    for place, value in changes:
        data[place % len(data)] = value
    changed = bytes(data[: cut % (2 * len(data))])  # half of them are not cut
    found = read_compiled(changed, num_rows, width)
    assert found is None or found == read_message(changed, num_rows, width)


@pytest.mark.parametrize(
    "fields",
    [
        {"logits_rows": int32([0])},
        {"failures": [common_pb2.Failure(slot=0, error=to_proto(StateLost("gone")))]},
        {"later_edits": [common_pb2.Edits()]},
        {"edits": common_pb2.Edits(rows=int32([1]), kinds=b"\1", offsets=int32([0, 1]), ids=int32([0]))},
        {"edits": common_pb2.Edits(rows=int32([0]), kinds=b"\1", offsets=int32([0, 1]), ids=int32([4]))},
        {"all_denied_rows": b"\0\0\0"},
        {"ended_admissions": -1},
        {"events": [common_pb2.Event(slot=-1)]},
    ],
)
def test_other_replies_are_left_to_python(fields: dict[str, Any]) -> None:
    def read(**fields: Any) -> object:
        message = processing_pb2.SessionResponse(seq=SEQ, edits=processing_pb2.StepEdits(**fields))
        return read_compiled(message.SerializeToString(), 1, 4)

    assert read() is not None
    assert read(**fields) is None


@pytest.mark.parametrize(
    "message",
    [
        processing_pb2.SessionResponse(),
        processing_pb2.SessionResponse(seq=SEQ),
        processing_pb2.SessionResponse(edits=processing_pb2.StepEdits()),
        processing_pb2.SessionResponse(seq=SEQ + 1, edits=processing_pb2.StepEdits()),
        processing_pb2.SessionResponse(seq=SEQ, error=to_proto(StateLost("gone"))),
        processing_pb2.SessionResponse(seq=SEQ, logits=processing_pb2.StepLogitsEdited()),
    ],
)
def test_other_messages_are_left_to_python(message: processing_pb2.SessionResponse) -> None:
    assert read_compiled(message.SerializeToString(), 1, 4) is None


@pytest.mark.parametrize("extra", range(10))
def test_lengths_of_more_bytes_than_they_need(extra: int) -> None:
    """Protobuf accepts some of them."""
    data = field(1, 0, varint(SEQ)) + field(5, 2, varint(0, extra))
    assert read_compiled(data, 1, 4) == read_message(data, 1, 4)


def test_it_keeps_the_reply() -> None:
    edits = common_pb2.Edits(rows=int32([0]), kinds=b"\1", offsets=int32([0, 1]), ids=int32([2]))
    message = processing_pb2.SessionResponse(seq=SEQ, edits=processing_pb2.StepEdits(edits=edits))
    reply = compiled.core.ReplyReader(4, compiled.core.Datatype.FP32).read(message.SerializeToString(), SEQ, 1)
    assert reply is not None
    for logits in (np.zeros((2, 4), np.float32), np.zeros((1, 5), np.float32), np.zeros((1, 4), np.float16)):
        assert not reply.apply(logits)
        assert not logits.any()
    logits = np.zeros((1, 4), np.float32)
    assert reply.apply(logits)
    assert logits.tolist() == [[0, 0, -np.inf, 0]]
