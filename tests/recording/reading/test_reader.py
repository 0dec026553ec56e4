"""Recordings whose events do not fit together, and forged ones."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.row_edits import EditKind
from logitport.errors import InvalidArgument
from logitport_proto.common_pb2 import Edits
from logitport_proto.recording_pb2 import (
    RecordedEvent,
    RecordedProcessor,
    RecordedRow,
    RequestBegan,
    RequestEnded,
    RequestStepped,
    SessionBegan,
    StepsDropped,
    TopLogits,
)
from logitport_recording.members import MAX_MEMBER_BYTES, pack
from logitport_recording.reading import unpacking
from logitport_recording.reading.event_checks import MAX_VOCAB_SIZE
from logitport_recording.reading.reader import read_recording
from logitport_server.cli.replay import _content_lines
from logitport_testing.replaying.compared_rows import recorded_rows
from tests.conftest import environment
from tests.recording.reading.build import began, column, content, edits, member, opened, stepped, top

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "engine.lprec"


def read(file: Path, *events: RecordedEvent) -> Any:
    file.write_bytes(member(*events))
    return read_recording(file)


def row_with(where: str, token_id: int) -> RecordedRow:
    """A row that has one id in this field."""
    if where == "edits":
        recorded = edits((EditKind.DENY, np.array([0], np.int32), None))
        recorded.ids = column([token_id])
        return RecordedRow(edits=recorded)
    return RecordedRow(before=top([token_id] if where == "before" else []), after=top([token_id]))


@pytest.mark.parametrize("token_id", [-1, 100, 1 << 30])
@pytest.mark.parametrize("where", ["edits", "before", "after"])
def test_ids_outside_of_a_row_are_an_error(file: Path, where: str, token_id: int) -> None:
    read(file, opened(), began(0), stepped(0, 0, rows=[row_with(where, 99)]))
    with pytest.raises(InvalidArgument, match="step 0 of request 0"):
        read(file, opened(), began(0), stepped(0, 0, rows=[row_with(where, token_id)]))


def test_a_history_may_have_any_ids(file: Path) -> None:
    read(file, opened(), began(0, prompt=[-1, 1 << 30]), stepped(0, 0, new_ids=[-1, 100, 5]))


def test_events_and_fields_of_later_versions_are_left_out(file: Path) -> None:
    unknown = b"\xfa\x07\x03abc"  # field 127
    ended = RecordedEvent.FromString(RecordedEvent(request_ended=RequestEnded(key=7)).SerializeToString() + unknown)
    later = RecordedEvent.FromString(unknown)
    (session,) = read(file, opened(), began(7), later, ended, later).sessions
    assert session.requests[0].ended


BIAS_WITHOUT_VALUES = Edits(rows=bytes(4), kinds=b"\x04", offsets=column([0, 1]), ids=bytes(4))


@pytest.mark.parametrize(
    "event",
    [
        opened(0),
        opened(-1),
        RecordedEvent(session_began=SessionBegan()),
        *(
            RecordedEvent(session_began=SessionBegan(opening=opened().session_began.opening, time=time))
            for time in (-1.0, 1e300, float("inf"), float("nan"))
        ),
        RecordedEvent(request_began=RequestBegan(request={"prompt_ids": b"abc"})),
        RecordedEvent(request_began=RequestBegan(request={"output_ids": b"abc"})),
        RecordedEvent(request_began=RequestBegan(request={"sampling_params": b"[]"})),
        RecordedEvent(request_began=RequestBegan(request={"sampling_params": b"{"})),
        RecordedEvent(request_began=RequestBegan(request={"sampling_params": b"[" * 10_000})),
        began(1, chain=[RecordedProcessor(params=b"1")]),
        began(1, chain=[RecordedProcessor(params=b"\xff")]),
        stepped(0, -1),
        stepped(0, 0, -1),
        stepped(1, 0),
        RecordedEvent(request_stepped=RequestStepped(new_token_ids=b"abc")),
        RecordedEvent(request_stepped=RequestStepped(draft_token_ids=b"abc")),
        stepped(0, 0, rows=[RecordedRow(draft_offset=-1)]),
        RecordedEvent(request_stepped=RequestStepped(draft_token_ids=bytes(4), draft_parents=bytes(4))),
        RecordedEvent(request_stepped=RequestStepped(draft_token_ids=bytes(4), draft_parents=b"\xff" * 8)),
        stepped(0, 0, rows=[RecordedRow(edits=BIAS_WITHOUT_VALUES)]),
        stepped(0, 0, rows=[RecordedRow(edits=Edits(kinds=b"\x01"))]),
        stepped(0, 0, rows=[RecordedRow(before=TopLogits(ids=b"abc"))]),
        stepped(0, 0, rows=[RecordedRow(after=TopLogits(ids=bytes(8), logits=bytes(4)))]),
        RecordedEvent(request_ended=RequestEnded(key=1)),
    ],
    ids=str,
)
def test_values_that_cannot_be(file: Path, event: RecordedEvent) -> None:
    first = [] if event.HasField("session_began") else [opened(), began(0)]
    with pytest.raises(InvalidArgument, match=str(file)):
        read(file, *first, event)


@pytest.mark.parametrize("event", [began(0), stepped(0, 0), RecordedEvent(steps_dropped=StepsDropped(steps=1))])
def test_a_session_begins_with_its_opening(file: Path, event: RecordedEvent) -> None:
    with pytest.raises(InvalidArgument, match="a session has events before its first one"):
        read(file, event)


EVENTS = [opened(), began(0, "a", [1, 2], [RecordedProcessor(builtin="top_k", params=b'{"top_k": 3}')])] + [
    stepped(0, index, 2 + index, [5], [row_with("edits", 5), row_with("after", 7)]) for index in range(3)
]


@given(st.data())
def test_forged_bytes_are_a_recording_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of valid events are replaced, left out and added; compression and checksums are right."""
    forged = bytearray(content(*EVENTS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(forged) - 1))
        end = data.draw(st.integers(at, min(at + 3, len(forged))))
        forged[at:end] = data.draw(st.binary(max_size=3))
    file = tmp_path_factory.getbasetemp() / "forged.lprec"
    file.write_bytes(pack([bytes(forged)]))
    try:
        recording = read_recording(file)
    except InvalidArgument:
        return
    assert len([*_content_lines(recording)]) >= 3 * len(recording.sessions)
    for session in recording.sessions:
        for request in session.requests:
            for part in request.parts:
                rows = [*recorded_rows(session.began.opening, part, "not run")]
                assert len(rows) == sum(len(step.rows) for step in part.steps)


def test_the_events_of_all_members_have_a_limit(file: Path) -> None:
    later = RecordedEvent.FromString(b"\xfa\x07\x80\x48" + bytes(9 << 10))  # field 127
    file.write_bytes(b"".join(member(event) for event in (opened(), later, later, later)))
    total = len(content(opened())) + 3 * len(content(later))
    assert read_recording(file, max_bytes=total).sessions[0].began.opening.vocab_size == 100
    with pytest.raises(InvalidArgument, match=f"more than {total - 1} bytes of events.*max_bytes="):
        read_recording(file, max_bytes=total - 1)


def test_a_small_file_expands_to_a_limit_by_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_decompressed", lambda *_: _Zeros())
    monkeypatch.setattr("logitport_recording.reading.reader.split", lambda _: [])  # the lengths alone are added
    bomb, count = pack([b""]), unpacking.MAX_TOTAL_BYTES // MAX_MEMBER_BYTES
    file.write_bytes(bomb * count)
    assert read_recording(file).sessions == []
    file.write_bytes(bomb * (count + 1))
    with pytest.raises(InvalidArgument, match=f"more than {unpacking.MAX_TOTAL_BYTES} bytes of events"):
        read_recording(file)


class _Zeros:
    def __len__(self) -> int:
        return MAX_MEMBER_BYTES


BIAS = RecordedRow(edits=edits(*[(EditKind.BIAS, np.array([1], np.int32), np.ones(1, np.float32))] * 5))
TOP = RecordedRow(before=top(range(20)), after=top(range(20)))


def steps_of(key: int, count: int, row: RecordedRow) -> list[RecordedEvent]:
    steps = [stepped(key, index, index, [1], [row] * 8) for index in range(count)]
    return [began(key, f"request {key}"), *steps]


MEASURE = """
import re, sys
from logitport.errors import InvalidArgument
from logitport_recording.reading.reader import read_recording
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, limit, kept = peak(), int(sys.argv[2]), None
try:
    kept = [(one.began, [*one.parts]) for session in read_recording(sys.argv[1], max_memory_bytes=limit).sessions
        for one in session.requests]
except InvalidArgument as error:
    print(error)
print(peak() - before)
"""


def measured(file: Path, limit: int) -> tuple[str, int]:
    """The error of a process that reads the file, and how much memory that took. Keeps each request, parsed."""
    command = [sys.executable, "-c", MEASURE, str(file), str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), timeout=300)
    *error, taken = run.stdout.splitlines()
    return "".join(error), int(taken)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21])


def field(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint(len(data)) + data


HEAD = b"\x09\x01" + bytes(7)  # the session's id
ZEROS = bytes(6_000_000)
FORGED: dict[str, Callable[[], list[bytes]]] = {
    "empty requests": lambda: [content(*[began(key) for key in range(50_000)])],
    "sessions": lambda: [content(opened(), session_id=key) for key in range(2, 50_000)],
    "empty rows": lambda: [content(began(0)), field(0x0A, HEAD + field(0x22, b"\x32\x00" * 1_000_000))],
    "empty processors": lambda: [field(0x0A, HEAD + field(0x1A, b"\x1a\x00" * 500_000))],
    "processors of requests": lambda: [content(began(key, chain=[RecordedProcessor()] * 200)) for key in range(2000)],
    "replaced content": lambda: [field(0x0A, HEAD + b"\x22\x00\x1a\x02\x12\x00" * 400_000)],
    "ids of tokens": lambda: [field(0x0A, HEAD + field(0x12, field(0x0A, b"\x08\x64" + field(0x32, ZEROS))))],
    "parameters": lambda: [content(began(0, chain=[RecordedProcessor(params=b'{"a": [' + b"[]," * 800_000 + b"1]}")]))],
}


@pytest.mark.slow  # two processes for each
@pytest.mark.parametrize("name", FORGED)
def test_forged_events_take_no_more_memory_than_the_limit(file: Path, name: str) -> None:
    file.write_bytes(pack([content(opened()), *FORGED[name]()]))
    limit = 4 << 20
    error, taken = measured(file, limit)
    assert "memory: read one request" in error
    overhead = 20 << 20  # the content itself, and all that any first reading loads
    assert taken < limit + overhead
    error, taken = measured(file, 2 << 30)
    assert not error
    assert taken > 1.5 * (limit + overhead), "without the limit it takes more, so that the first half can fail"


@pytest.mark.parametrize("row", [RecordedRow(), BIAS, TOP], ids=["plain", "edits", "tops"])
@pytest.mark.slow
def test_events_are_kept_as_they_are_in_the_file(file: Path, row: RecordedRow) -> None:
    file.write_bytes(member(opened(), *steps_of(0, 1000, row)))
    tracemalloc.start()
    try:
        recording = read_recording(file)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(recording.sessions[0].requests[0].steps) == 1000
    assert read_recording(file, max_memory_bytes=3 * taken).sessions[0].requests
    with pytest.raises(InvalidArgument, match="memory"):
        read_recording(file, max_memory_bytes=taken // 2)


def test_memory_is_refused_before_an_event_is_parsed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport_recording.reading.reader.check_step", None)
    file.write_bytes(pack([content(opened(), began(0)), field(0x0A, HEAD + field(0x22, b"\x32\x00" * 100_000))]))
    with pytest.raises(InvalidArgument, match=r"than 8 MiB of memory: read one request.*--request ID.*--max-memory"):
        read_recording(file, max_memory_bytes=8 << 20)


def test_only_the_events_of_one_request_are_kept(file: Path) -> None:
    events = [event for key in range(20) for event in steps_of(key, 100, BIAS)]
    file.write_bytes(member(opened(), *events, RecordedEvent(request_ended=RequestEnded(key=3))))
    limit = 200 << 10
    with pytest.raises(InvalidArgument, match="memory"):
        read_recording(file, max_memory_bytes=limit)
    (session,) = read_recording(file, request_id="request 3", max_memory_bytes=limit).sessions
    (request,) = session.requests
    assert (request.began.request.request_id, len(request.steps), request.ended) == ("request 3", 100, True)
    assert read_recording(file, request_id="none").sessions[0].requests == []


@pytest.mark.parametrize("vocab_size", [MAX_VOCAB_SIZE + 1, (1 << 31) - 1])
def test_a_huge_vocabulary_is_an_error(file: Path, vocab_size: int) -> None:
    assert read(file, opened(MAX_VOCAB_SIZE)).sessions[0].began.opening.vocab_size == MAX_VOCAB_SIZE
    with pytest.raises(InvalidArgument, match=f"a vocabulary of {vocab_size} ids"):
        read(file, opened(vocab_size))
