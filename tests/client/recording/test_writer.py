"""The writer's queue: what a slow, a full and a failing disk do."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import pytest

from logitport.recording import codec
from logitport.recording.chunks import FILE_HEADER, read
from logitport.recording.events import RecordingStopped, RequestEnded, SessionOpened, StepsDropped
from logitport.recording.file import FileFull
from logitport.recording.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.recording.events import Event

OPENED = SessionOpened(8, "FP32")


class FakeFile:
    """A file in memory. `gate` stops it; `error` is raised for chunks but the last one."""

    path = "fake"
    max_bytes = 1 << 30

    def __init__(self, error: Exception | None = None) -> None:
        self.data = FILE_HEADER
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = threading.Event()

    def append(self, chunk: bytes, *, last: bool = False) -> None:
        self.entered.set()
        self.gate.wait(60)
        if self.error is not None and not (last and isinstance(self.error, FileFull)):
            raise self.error
        self.data += chunk

    def close(self) -> None:
        self.closed.set()

    def events(self) -> list[Event]:
        found: list[Event] = []
        for item in read(io.BytesIO(self.data)):
            if not isinstance(item, int):
                found += codec.decode(item.events)
        return found


class Item:
    steps = 1

    def __init__(self, number: int, size_bytes: int = 1) -> None:
        self.number = number
        self.size_bytes = size_bytes

    def events(self) -> Iterator[Event]:
        yield RequestEnded(self.number)


class Defective(Item):
    def events(self) -> Iterator[Event]:
        raise RuntimeError("a defect")


def closed(writer: Writer, file: FakeFile) -> list[Event]:
    writer.close()
    assert file.closed.wait(60)
    return file.events()


def test_items_are_written_in_their_order() -> None:
    file = FakeFile()
    writer = Writer(file, OPENED, 1000)
    assert all(writer.offer(Item(number)) for number in range(50))
    assert closed(writer, file) == [OPENED, *map(RequestEnded, range(50)), RecordingStopped("closed")]
    assert not writer.offer(Item(51))


def test_nothing_is_written_without_items() -> None:
    file = FakeFile()
    assert closed(Writer(file, OPENED, 1000), file) == []


def test_a_slow_disk_drops_what_exceeds_the_queue() -> None:
    file = FakeFile()
    file.gate.clear()
    writer = Writer(file, OPENED, 100)
    assert writer.offer(Item(0, 60))  # wakes the thread, which then waits for the disk
    assert file.entered.wait(60)
    accepted = [writer.offer(Item(number, 30)) for number in range(1, 8)]
    assert accepted == [True] * 3 + [False] * 4
    file.gate.set()
    events = closed(writer, file)
    assert [event.key for event in events if isinstance(event, RequestEnded)] == [0, 1, 2, 3]
    assert sum(event.steps for event in events if isinstance(event, StepsDropped)) == 4
    assert events[-1] == RecordingStopped("closed", "", 4)


@pytest.mark.parametrize("error", [FileFull(), OSError(28, "No space left on device")])
def test_a_full_file_or_disk_ends_the_recording(error: Exception, caplog: Any) -> None:
    file = FakeFile(error)
    writer = Writer(file, OPENED, 1000)
    writer.offer(Item(0))
    writer.offer(Item(1))
    assert file.closed.wait(60)
    assert writer.stopped
    assert not writer.offer(Item(2))
    events = closed(writer, file)
    if isinstance(error, FileFull):
        (opened, stopped) = events
        assert (opened, stopped.reason) == (OPENED, "max_bytes")
        assert stopped.dropped_steps in (1, 2)  # the second one may not have come before
    else:
        assert events == []
        assert "No space left on device" in caplog.text
    assert "recording to fake has stopped" in caplog.text


def test_a_step_that_cannot_be_written_is_dropped(caplog: Any) -> None:
    file = FakeFile()
    writer = Writer(file, OPENED, 1000)
    for item in (Item(0), Defective(1), Item(2)):
        writer.offer(item)
    assert closed(writer, file) == [
        OPENED,
        RequestEnded(0),
        RequestEnded(2),
        StepsDropped(1),
        RecordingStopped("closed", "", 1),
    ]
    assert "could not be recorded" in caplog.text


def test_closing_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.recording.writer._CLOSE_SECONDS", 0.05)
    file = FakeFile()
    file.gate.clear()
    writer = Writer(file, OPENED, 100)
    writer.offer(Item(0))
    writer.close()
    assert not file.closed.is_set()
    file.gate.set()
    assert file.closed.wait(60)
