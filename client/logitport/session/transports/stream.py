"""Frames over a bidirectional gRPC stream: works everywhere."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import grpc

from logitport import calls
from logitport.errors import DeadlineExceeded, ServerUnavailable, SessionClosed
from logitport.session.transports.base import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.errors import LogitportError
    from logitport_proto import processing_pb2, processing_pb2_grpc

    _Frames = queue.SimpleQueue[processing_pb2.SessionRequest | None]

# How long a reply is left to an engine that may want it at once; seconds, of a forward pass that takes many times that.
_LET_THE_ENGINE_READ = 0.001


class GrpcStream(Transport):
    """The stream of `LogitProcessing.Session`.

    Args:
        stub: of the client's channel.
        target: the server's address, for messages.
        timeout: the longest that a reply may take, in seconds.
        metadata: of the call.
        encrypted: whether the channel is, for messages.
        max_message_bytes: the largest frame that the channel sends.
        wait_seconds: how long to wait for a server; gRPC tries again with backoff and jitter. With 0 there must be one.
    """

    name = "grpc"

    def __init__(
        self,
        stub: processing_pb2_grpc.LogitProcessingStub,
        target: str,
        timeout: float,
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        encrypted: bool = False,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
        wait_seconds: float = 0.0,
    ) -> None:
        self.target = target
        self.max_message_bytes = max_message_bytes
        self._timeout = timeout
        self._encrypted = encrypted
        self._frames: _Frames = queue.SimpleQueue()
        self._replies = stub.Session(_outgoing(self._frames), wait_for_ready=wait_seconds > 0, metadata=metadata)
        self._first_timeout = wait_seconds or timeout
        self._deadline = _Deadline(self._replies.cancel)
        self._left = _Left()
        # Also when a session that nobody closed is collected; its threads must not keep it alive.
        self._release = weakref.finalize(self, _release, self._frames, self._deadline, self._left, self._replies)
        self._release.atexit = False

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._check_open()
        self._check_size(frame.ByteSize())
        self._frames.put(frame)

    def receive(self) -> processing_pb2.SessionResponse:
        self._check_open()
        self._left.claim()
        timeout, self._first_timeout = self._first_timeout, self._timeout
        self._deadline.set(timeout)
        try:
            reply: processing_pb2.SessionResponse = next(self._replies)
        except StopIteration:
            broken = ServerUnavailable(f"{self.target} ended the session; open another with Client.session")
            raise self._broken(broken) from None
        except grpc.RpcError as error:
            if self._deadline.passed:
                self.close()
                raise DeadlineExceeded(
                    f"{self.target} did not answer a frame within {timeout} s; the session is closed"
                ) from None
            raise self._broken(calls.translate(error, self.target, encrypted=self._encrypted)) from None
        self._deadline.clear()
        return reply

    def on_readable(self, take_in: Callable[[], object]) -> None:
        threading.Thread(target=self._left.wait_for, args=(take_in,), name="logitport-reader", daemon=True).start()

    def leave_reply(self) -> None:
        self._left.leave()

    def close(self) -> None:
        self._ended = SessionClosed("the session is closed; open another with Client.session")
        self._release()

    def _broken(self, error: LogitportError) -> LogitportError:
        self._end(ServerUnavailable(f"the connection to {self.target} broke before: {error.message}"))
        self._release()
        return error


def _release(frames: _Frames, deadline: _Deadline, left: _Left, replies: Any) -> None:
    frames.put(None)
    deadline.close()
    left.close()
    replies.cancel()


def _outgoing(frames: _Frames) -> Iterator[processing_pb2.SessionRequest]:
    while (frame := frames.get()) is not None:
        yield frame


class _Left:
    """Replies that are left to a thread of their own.

    A gRPC stream does not tell when a reply is there, so the thread waits for it; but not for one that the engine waits
    for by itself, which would have one thread more to wait for.
    """

    def __init__(self) -> None:
        self._there_is_one = threading.Event()
        self._closed = False

    def leave(self) -> None:
        self._there_is_one.set()

    def claim(self) -> None:
        self._there_is_one.clear()

    def close(self) -> None:
        self._closed = True
        self._there_is_one.set()

    def wait_for(self, take_in: Callable[[], object]) -> None:
        while self._there_is_one.wait() and not self._closed:
            time.sleep(_LET_THE_ENGINE_READ)
            if self._there_is_one.is_set() and not self._closed:
                self.claim()
                take_in()


class _Deadline:
    """Calls `expire` once a deadline that was set has passed.

    A blocking read of a gRPC stream takes no timeout, and a timer a step would cost more than the step.
    """

    _GRANULARITY = 0.05

    def __init__(self, expire: Callable[[], object]) -> None:
        self.passed = False
        self._expire = expire
        self._at = float("inf")
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="logitport-deadline", daemon=True).start()

    def set(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def clear(self) -> None:
        self._at = float("inf")

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._GRANULARITY):
            if time.monotonic() > self._at:
                self.passed = True
                self._expire()
                return
