"""The transport to a session in this process."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

from logitport.errors import LogitportError, SessionClosed
from logitport.session.transports.base import Transport
from logitport.system.local_frames import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import processing_pb2

_Later = TypeVar("_Later")


class Frames(Protocol):
    """A session in this process, see `logitport_session.engine_session.session_frames.SessionFrames`."""

    # Processes a serialized frame, and returns its serialized reply. `run` gets what the core does not compute.
    @overload
    def handle(self, data: bytes, transport: str) -> bytes: ...
    @overload
    def handle(self, data: bytes, transport: str, run: Callable[[Callable[[], bytes]], _Later]) -> bytes | _Later: ...

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
        # Replies that were not received, or functions that return or raise what replaces them.
        self._replies: deque[bytes | Callable[[], bytes]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._process = os.getpid()  # of the thread

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._check_open()
        self._check_size(frame.ByteSize())
        self._settle()
        try:
            self._replies.append(self._frames.handle(frame.SerializeToString(), self.name))
        except LogitportError as error:
            self._replies.append(_raising(error))

    def send_bytes(self, frame: bytes) -> None:
        self._check_open()
        data = frame[LENGTH.size :]
        self._check_size(len(data))
        self._settle()
        self._replies.append(self._frames.handle(data, self.name, self._on_thread))

    def receive(self) -> bytes:
        self._check_open()
        reply = self._replies.popleft()
        if not isinstance(reply, bytes):
            reply = reply()
        self._frames.record()
        return reply

    def _check_open(self) -> None:
        super()._check_open()
        if self._process != os.getpid() and self._replies and not isinstance(self._replies[-1], bytes):
            raise self._end(SessionClosed("the process was forked during a step of this session; open another one"))

    def close(self) -> None:
        if self._ended is not None:
            return
        self._end(SessionClosed("the session is closed; open another one"))
        if self._thread is not None:
            self._thread.shutdown()
        self._frames.close()

    def _on_thread(self, compute: Callable[[], bytes]) -> Callable[[], bytes]:
        if self._thread is None or self._process != os.getpid():  # a fork does not have the thread
            self._thread = ThreadPoolExecutor(1, "logitport-embedded")
            self._process = os.getpid()
        return self._thread.submit(compute).result

    def _settle(self) -> None:
        """Wait for a step on the thread: a session handles one frame at a time."""
        if self._replies and not isinstance(self._replies[-1], bytes):
            compute = self._replies.pop()
            try:
                self._replies.append(compute())  # type: ignore[operator] # it is no bytes
            except LogitportError as error:
                self._replies.append(_raising(error))


def _raising(error: LogitportError) -> Callable[[], bytes]:
    def reply() -> bytes:
        raise error

    return reply
