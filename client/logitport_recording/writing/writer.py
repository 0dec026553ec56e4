"""Writes events to a recording on a thread of its own, so that a slow or full disk does not delay the engine."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import InvalidArgument
from logitport_proto.recording_pb2 import RecordedEvent, RecordingStopped, StepsDropped
from logitport_recording.events import encode
from logitport_recording.members import pack
from logitport_recording.writing.file import FileFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport_proto.recording_pb2 import SessionBegan
    from logitport_recording.writing.file import RecordingFile

logger = logging.getLogger(__name__)

# A killed engine loses the steps of about this time.
_FLUSH_SECONDS = 0.2
# How long the end of a session waits for the disk.
_CLOSE_SECONDS = 2.0
# Members are smaller for a small file, which otherwise could be full before its first member.
_MAX_MEMBER_BYTES = 256 << 10
_MEMBERS_PER_FILE = 16


class Item(NamedTuple):
    """An item of the queue.

    Attributes:
        events: makes its events; called on the writer's thread.
        size_bytes: memory that it holds.
        steps: number of steps of requests that are lost if it is dropped.
        lose: called on the writer's thread if its events cannot be made.
    """

    events: Callable[[], Iterable[RecordedEvent]]
    size_bytes: int
    steps: int
    lose: Callable[[], None] = lambda: None


class Writer:
    """Has a queue of bounded size. `offer` is called by one thread, and never waits.

    Args:
        file: the file.
        began: the first event; it is written with the first item.
        max_queue_bytes: memory of the queue.

    Attributes:
        stopped: whether nothing more is accepted.
    """

    def __init__(self, file: RecordingFile, began: SessionBegan, max_queue_bytes: int) -> None:
        self._file = file
        self._began = RecordedEvent(session_began=began)
        self._max_queue_bytes = max_queue_bytes
        self._member_bytes = min(_MAX_MEMBER_BYTES, file.max_bytes // _MEMBERS_PER_FILE)
        self._session_id = secrets.randbits(64)
        self._queue: deque[Item] = deque()
        # Each is changed by one thread only: the difference is what waits.
        self._offered_bytes = 0
        self._taken_bytes = 0
        # Steps that `offer` has refused, and those that could not be encoded.
        self._refused_steps = 0
        self._failed_steps = 0
        self._written_drops = 0
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._buffered_steps = 0
        self._wake = threading.Event()
        self._closing = False
        self.stopped = False
        self._thread: threading.Thread | None = None

    @property
    def dropped_steps(self) -> int:
        """Number of steps of requests that were not written."""
        return self._refused_steps + self._failed_steps

    def offer(self, item: Item) -> bool:
        """Queue an item. Returns whether it was accepted; otherwise its steps are counted as dropped."""
        waiting = self._offered_bytes - self._taken_bytes + item.size_bytes
        if self.stopped or waiting > self._max_queue_bytes:
            self._refused_steps += item.steps
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logitport-recording", daemon=True)
            self._thread.start()
        self._offered_bytes += item.size_bytes
        self._queue.append(item)
        if waiting > self._max_queue_bytes // 4:
            self._wake.set()
        return True

    def close(self) -> None:
        """Write what waits, and the end. Waits for a limited time. May be called twice."""
        self._closing = True
        self._wake.set()
        if self._thread is None:
            self.stopped = True
            self._file.close()
        else:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        self._buffer.append(self._encode(self._began))
        try:
            while not (self._closing or self.stopped):
                self._wake.wait(_FLUSH_SECONDS)
                self._wake.clear()
                self._write_queue()
            self._write_queue()
            if not self.stopped:
                self._stop("closed", "")
        finally:
            self.stopped = True
            self._queue.clear()
            self._file.close()

    def _write_queue(self) -> None:
        while self._queue and not self.stopped:
            item = self._queue.popleft()
            try:
                encoded = [*map(self._encode, item.events())]
            except Exception:  # a defect must not end the recording
                self._failed_steps += item.steps
                item.lose()
                logger.warning("a step could not be recorded", exc_info=True)
            else:
                self._buffer += encoded
                self._buffered_bytes += sum(map(len, encoded))
                self._buffered_steps += item.steps
            self._taken_bytes += item.size_bytes
            if self._buffered_bytes >= self._member_bytes:
                self._flush()
        if not self.stopped:
            self._flush()

    def _flush(self) -> None:
        dropped = self.dropped_steps
        if dropped > self._written_drops:
            event = StepsDropped(steps=dropped - self._written_drops)
            self._buffer.append(self._encode(RecordedEvent(steps_dropped=event)))
        if not self._buffer:
            return
        try:
            self._file.append(pack(self._buffer))
        except FileFull:
            self._stop("max_bytes", "the file has reached its largest size, max_bytes")
        except (OSError, InvalidArgument) as error:
            self._stop("error", str(error))
        else:
            self._written_drops = dropped
            self._buffer.clear()
            self._buffered_bytes = self._buffered_steps = 0

    def _stop(self, reason: str, message: str) -> None:
        """End the recording; the event that says so fits into the reserved bytes, if the disk has room."""
        self.stopped = True
        if message:
            logger.warning("recording to %s has stopped, and the engine goes on: %s", self._file.path, message)
        waiting = self._buffered_steps + sum(item.steps for item in tuple(self._queue))
        stopped = RecordingStopped(reason=reason, message=message, dropped_steps=self.dropped_steps + waiting)
        events = [self._began] if self._buffer else []  # which the buffer may still hold
        events.append(RecordedEvent(recording_stopped=stopped))
        try:
            self._file.append(pack(map(self._encode, events)), last=True)
        except (FileFull, OSError, InvalidArgument) as error:
            logger.warning("the end of the recording %s could not be written: %s", self._file.path, error or "full")

    def _encode(self, event: RecordedEvent) -> bytes:
        event.session_id = self._session_id
        return encode(event)
