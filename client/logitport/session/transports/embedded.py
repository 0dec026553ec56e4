"""The transport to a session in this process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from logitport.core.local_frames import LENGTH
from logitport.errors import SessionClosed
from logitport.session.transports.base import Transport

if TYPE_CHECKING:
    from logitport_proto import processing_pb2


class Frames(Protocol):
    """A session in this process, see `logitport_session.frames.SessionFrames`."""

    def handle(self, data: bytes, transport: str) -> bytes:
        """Process a serialized frame, and return its serialized reply."""

    def handle_compiled(self, data: bytes, transport: str) -> bytes | None:
        """Process a step that the compiled core computes; None for any other frame."""

    def record(self) -> None:
        """Record the last reply."""

    def close(self) -> object:
        """End the session."""


class EmbeddedTransport(Transport):
    """Passes frames to a session in this process.

    A step that the compiled core computes is computed at once: that takes less time than to wake another thread. Other
    steps are computed on a thread, while the engine's forward pass runs.
    """

    name = target = "embedded"

    def __init__(self, frames: Frames, max_message_bytes: int) -> None:
        self._frames = frames
        self.max_message_bytes = max_message_bytes
        self._reply: Future[bytes] = Future()
        self._thread: ThreadPoolExecutor | None = None

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._handle(frame.SerializeToString())

    def send_bytes(self, frame: bytes) -> None:
        self._check_open()
        data = frame[LENGTH.size :]
        self._check_size(len(data))
        reply = self._frames.handle_compiled(data, self.name)
        if reply is not None:
            self._reply = Future()
            self._reply.set_result(reply)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "logitport-embedded")
        self._reply = self._thread.submit(self._frames.handle, data, self.name)

    def receive(self) -> bytes:
        self._check_open()
        reply = self._reply.result()
        self._frames.record()
        return reply

    def close(self) -> None:
        if self._ended is not None:
            return
        self._end(SessionClosed("the session is closed; open another one"))
        if self._thread is not None:
            self._thread.shutdown()
        self._frames.close()

    def _handle(self, data: bytes) -> None:
        self._check_open()
        self._check_size(len(data))
        self._reply = Future()
        self._reply.set_result(self._frames.handle(data, self.name))
