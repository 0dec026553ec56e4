"""Members of a file as they are written, and their events."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.recording.events import MAX_EVENT_BYTES, encode
from logitport.recording.members import end_of_last
from logitport_proto.recording_pb2 import RecordedEvent, SessionBegan
from tests.testing.recordings.build import file_of

PARTS = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


@given(PARTS)
def test_every_reader_of_gzip_reads_a_file(parts: list[bytes]) -> None:
    assert gzip.decompress(file_of(parts)[0]) == b"".join(parts)


@given(PARTS, st.data())
def test_the_end_of_the_last_whole_member_of_a_file_that_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    cut = data.draw(st.integers(1, len(written)))
    assert end_of_last(io.BytesIO(written[:cut]), 0, cut) == max(border for border in borders if border <= cut)


def test_an_event_that_a_reader_would_refuse_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(RecordedEvent(session_began=SessionBegan(sdk_version="a" * MAX_EVENT_BYTES)))
