"""The writer's queue: what a slow, a full and a failing disk do."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from logitport_proto.processing_pb2 import OpenSession
from logitport_proto.recording_pb2 import RecordedEvent, RecordingStopped, RequestEnded, SessionBegan, StepsDropped
from logitport_recording.reading.unpacking import read, split
from logitport_recording.writing.file import FileFull
from logitport_recording.writing.writer import Item, Writer

BEGAN = SessionBegan(opening=OpenSession(vocab_size=8))


class FakeFile:
    """A file in memory. `gate` stops it; `error` is raised for members but the last one."""

    path = "fake"
    max_bytes = 1 << 30

    def __init__(self, error: Exception | None = None) -> None:
        self.data = b""
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = threading.Event()

    def append(self, member: bytes, *, last: bool = False) -> None:
        self.entered.set()
        self.gate.wait(60)
        if self.error is not None and not (last and isinstance(self.error, FileFull)):
            raise self.error
        self.data += member

    def close(self) -> None:
        self.closed.set()

    def events(self) -> list[Any]:
        """The events; all of them are of one session."""
        content = [one for one in read(io.BytesIO(self.data)) if not isinstance(one, int)] if self.data else []
        events = [RecordedEvent.FromString(one) for part in content for one in split(part)]
        assert len({event.session_id for event in events}) <= 1
        return [getattr(event, event.WhichOneof("event") or "") for event in events]


def item(number: int, size_bytes: int = 1) -> Item:
    return Item(lambda: [RecordedEvent(request_ended=RequestEnded(key=number))], size_bytes, 1)


def defective() -> list[RecordedEvent]:
    raise RuntimeError("a defect")


def closed(writer: Writer, file: FakeFile) -> list[Any]:
    writer.close()
    assert file.closed.wait(60)
    return file.events()


def test_items_are_written_in_their_order() -> None:
    file = FakeFile()
    writer = Writer(file, BEGAN, 1000)
    assert all(writer.offer(item(number)) for number in range(50))
    assert closed(writer, file) == [
        BEGAN,
        *(RequestEnded(key=number) for number in range(50)),
        RecordingStopped(reason="closed"),
    ]
    assert not writer.offer(item(51))


def test_nothing_is_written_without_items() -> None:
    file = FakeFile()
    assert closed(Writer(file, BEGAN, 1000), file) == []


def test_a_slow_disk_drops_what_exceeds_the_queue() -> None:
    file = FakeFile()
    file.gate.clear()
    writer = Writer(file, BEGAN, 100)
    assert writer.offer(item(0, 60))  # wakes the thread, which then waits for the disk
    assert file.entered.wait(60)
    accepted = [writer.offer(item(number, 30)) for number in range(1, 8)]
    assert accepted == [True] * 3 + [False] * 4
    file.gate.set()
    events = closed(writer, file)
    assert [event.key for event in events if isinstance(event, RequestEnded)] == [0, 1, 2, 3]
    assert sum(event.steps for event in events if isinstance(event, StepsDropped)) == 4
    assert events[-1] == RecordingStopped(reason="closed", dropped_steps=4)


@pytest.mark.parametrize("error", [FileFull(), OSError(28, "No space left on device")])
def test_a_full_file_or_disk_ends_the_recording(error: Exception, caplog: Any) -> None:
    file = FakeFile(error)
    writer = Writer(file, BEGAN, 1000)
    writer.offer(item(0))
    writer.offer(item(1))
    assert file.closed.wait(60)
    assert writer.stopped
    assert not writer.offer(item(2))
    events = closed(writer, file)
    if isinstance(error, FileFull):
        (opened, stopped) = events
        assert (opened, stopped.reason) == (BEGAN, "max_bytes")
        assert stopped.dropped_steps in (1, 2)  # the second one may not have come before
    else:
        assert events == []
        assert "No space left on device" in caplog.text
    assert "recording to fake has stopped" in caplog.text


def test_a_step_that_cannot_be_written_is_dropped(caplog: Any) -> None:
    file = FakeFile()
    writer = Writer(file, BEGAN, 1000)
    for one in (item(0), Item(defective, 1, 1), item(2)):
        writer.offer(one)
    assert closed(writer, file) == [
        BEGAN,
        RequestEnded(key=0),
        RequestEnded(key=2),
        StepsDropped(steps=1),
        RecordingStopped(reason="closed", dropped_steps=1),
    ]
    assert "could not be recorded" in caplog.text


def test_closing_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport_recording.writing.writer._CLOSE_SECONDS", 0.05)
    file = FakeFile()
    file.gate.clear()
    writer = Writer(file, BEGAN, 100)
    writer.offer(item(0))
    writer.close()
    assert not file.closed.is_set()
    file.gate.set()
    assert file.closed.wait(60)
