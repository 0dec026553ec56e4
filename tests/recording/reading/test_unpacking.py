"""Files of members that are unpacked: whole, cut, damaged and forged ones; and their events."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport_proto.recording_pb2 import RecordedEvent, Recording, RequestEnded, SessionBegan
from logitport_recording import members
from logitport_recording.events import encode
from logitport_recording.members import PREFIX, pack
from logitport_recording.reading.unpacking import read, split
from tests.recording.reading.build import file_of

PARTS = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


@given(PARTS, st.data())
def test_a_file_that_is_cut_has_its_whole_members(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    cut = data.draw(st.integers(1, len(written)))
    whole = sum(border <= cut for border in borders) - 1
    found = list(read(io.BytesIO(written[:cut])))
    assert found == [*parts[:whole], cut - borders[whole]]


@given(PARTS, st.data())
def test_a_damaged_byte_is_never_read_as_other_events(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    place = data.draw(st.integers(0, len(written) - 1))
    damaged = bytearray(written)
    damaged[place] ^= data.draw(st.integers(1, 255))
    before = sum(border <= place for border in borders) - 1
    found: list[bytes | int] = []
    try:
        found.extend(read(io.BytesIO(damaged)))
    except InvalidArgument:
        assert found == parts[: len(found)]
        return
    # A larger length of the last members looks like an incomplete one; and some bits of deflate have no meaning.
    assert found[:-1] == parts[: len(found) - 1]
    assert len(found) - 1 == len(parts) if found[-1] == 0 else len(found) - 1 <= before


@pytest.mark.parametrize(
    "head",
    [b"", b"PK\x03\x04" + bytes(40), gzip.compress(b"notes"), PREFIX[:-1] + b"\x01abcd"],
    ids=["empty", "zip", "gzip", "unknown version"],  # the header of gzip has the time
)
def test_other_files_are_refused(head: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no recording"):
        list(read(io.BytesIO(head)))


def forged(data: bytes, length: int | None = None) -> bytes:
    """A member with this compressed content and trailer, and perhaps a false length."""
    return PREFIX + struct.pack("<I", len(PREFIX) + 4 + len(data) if length is None else length) + data


def deflated(content: bytes) -> bytes:
    deflate = zlib.compressobj(9, wbits=-15)
    return deflate.compress(content) + deflate.flush()


def trailer(content: bytes) -> bytes:
    return struct.pack("<II", zlib.crc32(content), len(content))


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (forged(deflated(b"abc") + trailer(b"abd")), "incorrect data check"),
        (forged(deflated(b"abc") + trailer(b"abc")[:4] + bytes(4)), "incorrect length check"),
        (forged(deflated(b"abc") + trailer(b"abc")[:7]), "ends before or after its data"),
        (forged(deflated(b"abc") + trailer(b"abc") + b"more"), "ends before or after its data"),
        (forged(b"\xff" * 40), "cannot be decompressed"),
        (forged(b"", 0), "a length of 0 bytes"),
        (forged(b"", 28), "a length of 28 bytes"),
        (forged(b"", (1 << 32) - 1), "a length of 4294967295 bytes"),
    ],
    ids=itertools.count(),
)
def test_forged_members_are_refused(member: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"the member at byte 31 .*{problem}"):
        list(read(io.BytesIO(pack([b"a"]) + member)))


@pytest.mark.slow
def test_a_member_that_expands_to_too_much_is_refused() -> None:
    content = bytes(members.MAX_MEMBER_BYTES + 1)
    with pytest.raises(InvalidArgument, match=f"more than {members.MAX_MEMBER_BYTES} bytes of events"):
        list(read(io.BytesIO(forged(deflated(content) + trailer(content)))))
    largest = content[:-1]
    assert list(read(io.BytesIO(pack([largest])))) == [largest, 0]


def test_data_without_a_pattern_fits_in_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_LEVEL", 0)  # none is longer
    content = random.Random(0).randbytes(members.MAX_MEMBER_BYTES)
    assert list(read(io.BytesIO(pack([content])))) == [content, 0]


def test_too_many_events_for_a_member_make_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_MEMBER_BYTES", 6)
    assert list(read(io.BytesIO(pack([b"one", b"two", b"three"])))) == [b"onetwo", b"three", 0]


EVENTS = st.lists(
    st.one_of(
        st.builds(lambda key: RecordedEvent(request_ended=RequestEnded(key=key)), st.integers(0, 2**31 - 1)),
        st.builds(lambda text: RecordedEvent(session_began=SessionBegan(sdk_version=text)), st.text(max_size=300)),
    ),
    max_size=4,
)


@given(EVENTS)
def test_events_one_after_another_are_a_recording(events: list[RecordedEvent]) -> None:
    data = b"".join(map(encode, events))
    assert [RecordedEvent.FromString(one) for one in split(data)] == events
    assert Recording.FromString(data) == Recording(events=events)


@given(EVENTS.filter(bool), st.data())
def test_cut_events_are_an_error(events: list[RecordedEvent], data: st.DataObject) -> None:
    encoded = b"".join(map(encode, events))
    cut = data.draw(st.integers(1, len(encoded) - 1))
    if cut not in {sum(len(encode(event)) for event in events[:count]) for count in range(len(events))}:
        with pytest.raises(InvalidArgument):
            list(split(encoded[:cut]))


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x80", b"\x0a" + b"\xff" * 9, b"\x12\x00", b"\x0a\xff\xff\x03"])
def test_lengths_that_cannot_be(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        list(split(data))
