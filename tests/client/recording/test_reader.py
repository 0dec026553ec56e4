"""Recordings whose events do not fit together."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport.core.row_edits import EditKind
from logitport.errors import InvalidArgument
from logitport.recording import chunks
from logitport.recording.codec import encode
from logitport.recording.events import RecordedRow, RequestBegan, RequestEnded, RequestStepped, SessionOpened, TopLogits
from logitport.recording.reader import MAX_VOCAB_SIZE, read_recording

if TYPE_CHECKING:
    from pathlib import Path

NONE = np.empty(0, np.int32)
OPENED = SessionOpened(100, "FP32")
BEGAN = RequestBegan(0, "a", NONE, NONE, (), {})


def read(path: Path, row: RecordedRow, new_ids: tuple[int, ...] = ()) -> None:
    step = RequestStepped(0, 0, 0, np.array(new_ids, np.int32), NONE, (row,))
    path.write_bytes(chunks.FILE_HEADER + chunks.pack(1, b"".join(map(encode, (OPENED, BEGAN, step)))))
    read_recording(path)


@pytest.mark.parametrize("token_id", [-1, 100, 1 << 30])
@pytest.mark.parametrize("where", ["edits", "before", "after"])
def test_ids_outside_of_a_row_are_an_error(tmp_path: Path, where: str, token_id: int) -> None:
    def row(one: int) -> RecordedRow:
        ids = np.array([one], np.int32)
        values = ((EditKind.DENY, ids, None),) if where == "edits" else TopLogits(ids, np.zeros(1, np.float32), 0.0)
        return RecordedRow(**{where: values})

    read(tmp_path / "file", row(99))
    with pytest.raises(InvalidArgument, match="step 0 of request 0"):
        read(tmp_path / "file", row(token_id))


def test_a_history_may_have_any_ids(tmp_path: Path) -> None:
    read(tmp_path / "file", RecordedRow(), (-1, 100, 5))


def test_the_events_of_all_chunks_have_a_limit(tmp_path: Path) -> None:
    first = encode(OPENED)
    more = [b"\x63" + (0).to_bytes(4, "little") + (9 << 10).to_bytes(4, "little") + bytes(9 << 10)] * 4  # unknown kind
    file = tmp_path / "file"
    file.write_bytes(chunks.FILE_HEADER + chunks.pack(1, first) + b"".join(chunks.pack(1, one) for one in more))
    total = len(first) + sum(map(len, more))
    assert read_recording(file, max_bytes=total).sessions[0].opened == OPENED
    with pytest.raises(InvalidArgument, match=f"more than {total - 1} bytes of events.*max_bytes="):
        read_recording(file, max_bytes=total - 1)


def test_a_small_file_expands_to_a_limit_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_decompressed", lambda *_: b"")  # the lengths alone are added
    chunk = bytearray(chunks.pack(1, b""))
    data = bytes(chunk[24:])
    head = struct.pack("<4sQII", b"LPck", 1, len(data), chunks.MAX_RAW_BYTES)
    bomb = head + struct.pack("<I", zlib.crc32(data, zlib.crc32(head))) + data
    file = tmp_path / "file"
    file.write_bytes(chunks.FILE_HEADER + bomb * (chunks.MAX_TOTAL_BYTES // chunks.MAX_RAW_BYTES))
    assert read_recording(file).sessions == []
    file.write_bytes(file.read_bytes() + bomb)
    with pytest.raises(InvalidArgument, match=f"more than {chunks.MAX_TOTAL_BYTES} bytes of events"):
        read_recording(file)


def steps_of(key: int, count: int, row: RecordedRow) -> bytes:
    began = RequestBegan(key, f"request {key}", NONE, NONE, (), {})
    steps = [RequestStepped(key, index, index, np.array([1], np.int32), NONE, (row,) * 8) for index in range(count)]
    return b"".join(map(encode, (began, *steps)))


BIAS = RecordedRow(0, tuple((EditKind.BIAS, np.array([1], np.int32), np.ones(1, np.float32)) for _ in range(5)))
TOP = TopLogits(np.arange(20, dtype=np.int32), np.zeros(20, np.float32), 1.0)


@pytest.mark.parametrize("row", [RecordedRow(), BIAS, RecordedRow(0, None, TOP, TOP)], ids=["plain", "edits", "tops"])
def test_the_memory_of_events_has_a_limit(tmp_path: Path, row: RecordedRow) -> None:
    file = tmp_path / "file"
    file.write_bytes(chunks.FILE_HEADER + chunks.pack(1, encode(OPENED) + steps_of(0, 400, row)))
    tracemalloc.start()
    try:
        recording = read_recording(file)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(recording.sessions[0].requests[0].steps) == 400
    assert read_recording(file, max_memory_bytes=4 * taken).sessions[0].requests
    with pytest.raises(InvalidArgument, match=r"memory: read one request.*--request ID.*--max-memory"):
        read_recording(file, max_memory_bytes=taken // 2)


def test_memory_is_refused_before_an_event_is_decoded(tmp_path: Path) -> None:
    rows = b'{"key":0,"index":0,"base":0,"new":0,"rows":[' + b"{}," * 100_000 + b"{}]}"
    event = b"\x03" + len(rows).to_bytes(4, "little") + bytes(4) + rows
    file = tmp_path / "file"
    file.write_bytes(chunks.FILE_HEADER + chunks.pack(1, encode(OPENED) + encode(BEGAN) + event))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="more than 8 MiB of memory"):
            read_recording(file, max_memory_bytes=8 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_only_the_events_of_one_request_are_kept(tmp_path: Path) -> None:
    events = [encode(OPENED), *(steps_of(key, 100, BIAS) for key in range(20)), encode(RequestEnded(3))]
    file = tmp_path / "file"
    file.write_bytes(chunks.FILE_HEADER + chunks.pack(1, b"".join(events)))
    with pytest.raises(InvalidArgument, match="memory"):
        read_recording(file, max_memory_bytes=2 << 20)
    (session,) = read_recording(file, request_id="request 3", max_memory_bytes=2 << 20).sessions
    (request,) = session.requests
    assert (request.began.request_id, len(request.steps), request.ended) == ("request 3", 100, True)
    assert read_recording(file, request_id="none").sessions[0].requests == []


@pytest.mark.parametrize("vocab_size", [MAX_VOCAB_SIZE + 1, (1 << 31) - 1])
def test_a_huge_vocabulary_is_an_error(tmp_path: Path, vocab_size: int) -> None:
    file = tmp_path / "file"
    for size in (MAX_VOCAB_SIZE, vocab_size):
        file.write_bytes(chunks.FILE_HEADER + chunks.pack(1, encode(SessionOpened(size, "FP32"))))
        if size == MAX_VOCAB_SIZE:
            assert read_recording(file).sessions[0].opened.vocab_size == size
    with pytest.raises(InvalidArgument, match=f"a vocabulary of {vocab_size} ids"):
        read_recording(file)
