"""The gRPC transport: frames over a bidirectional stream, between any two hosts."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import ServerUnavailable, SessionClosed
from logitport.session.transports.base import Transport
from logitport.shipping import calls
from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES
from logitport.system.local_frames import LENGTH
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.core.compiled import core
    from logitport.errors import LogitportError

    # A frame, or the result of `with_length`.
    _Frames = queue.SimpleQueue[processing_pb2.SessionRequest | bytes | None]

_METHOD = f"/{processing_pb2.DESCRIPTOR.services_by_name['LogitProcessing'].full_name}/Session"

# How long the reader thread waits, so that an engine that applies a step at once receives the reply itself. A forward
# pass takes many times longer.
_ENGINE_HEAD_START_SECONDS = 0.001


class GrpcStream(Transport):
    """The stream of `LogitProcessing.Session`.

    Args:
        channel: the client's.
        target: the server's address, for messages.
        timeout: deadline of a reply, in seconds.
        metadata: of the call.
        encrypted: whether the channel uses TLS, for messages.
        max_message_bytes: the largest frame that the channel sends.
        wait_seconds: how long to wait for a server, while gRPC retries with backoff and jitter. With 0 the first
            attempt must succeed.
        open_seconds: time for the first reply, after which the connection counts as lost.
    """

    name = "grpc"

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        timeout: float,
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        encrypted: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        wait_seconds: float = 0.0,
        open_seconds: float = math.inf,
    ) -> None:
        self.target = target
        self.max_message_bytes = max_message_bytes
        self._timeout = timeout
        self._encrypted = encrypted
        self._frames: _Frames = queue.SimpleQueue()
        # On gRPC's thread, frames are serialized: the engine's thread has less to do. Replies are left as they are.
        session: Any = channel.stream_stream(_METHOD, request_serializer=_serialize)
        frames = iter(self._frames.get, None)
        self._replies = session(frames, wait_for_ready=wait_seconds > 0, metadata=metadata)
        # Not `wait_seconds`: a server that stops after it has accepted the stream would take all of that time.
        self._first_timeout = min(wait_seconds or timeout, timeout)
        self._open_limit = open_seconds
        self._deadline = _Deadline(self._replies.cancel)
        self._deferred = _DeferredReplies()
        # Also runs when a session is garbage-collected without `close`; its threads must not keep it alive.
        self._release = weakref.finalize(self, _release, self._frames, self._deadline, self._deferred, self._replies)
        self._release.atexit = False

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        self._check_open()
        self._check_size(frame.ByteSize())
        self._frames.put(frame)

    def send_bytes(self, frame: bytes) -> None:
        if self._ended is not None:
            self._check_open()
        if len(frame) > self.max_message_bytes:
            self._check_size(len(frame) - LENGTH.size)
        self._frames.put(frame)

    def receive(self) -> bytes:
        if self._ended is not None:
            self._check_open()
        self._deferred.claim()
        timeout, self._first_timeout = self._first_timeout, self._timeout
        limit, self._open_limit = min(self.reply_limit, self._open_limit), math.inf
        self._deadline.set(min(timeout, limit))
        try:
            reply: bytes = next(self._replies)
        except StopIteration:
            message = f"{self.target} ended the session; open another with Client.session"
            raise self._broken(ServerUnavailable(message, was_connected=True)) from None
        except grpc.RpcError as error:
            if self._is_lost:
                raise self._broken(self._stopped()) from None
            if not self._deadline.clear():
                raise self._missed(timeout, limit) from None
            raise self._broken(calls.translate(error, self.target, encrypted=self._encrypted)) from None
        # A reply may arrive while the deadline passes: the stream is cancelled then, and this frame has missed it. The
        # next frame would fail with its own, longer limit.
        if not self._deadline.clear():
            raise self._missed(timeout, limit)
        return reply

    def _missed(self, timeout: float, limit: float) -> LogitportError:
        if limit < timeout:
            return self._broken(self._no_reply(limit))
        self.close()
        return ServerUnavailable(
            f"{self.target} did not reply to a frame within {timeout} s; the session is closed", timed_out=True
        )

    def on_readable(self, take_early: Callable[[], object]) -> None:
        wait_for = self._deferred.wait_for
        threading.Thread(target=wait_for, args=(take_early,), name="logitport-reader", daemon=True).start()

    def leave_reply(self, reader: core.ReplyReader | None, seq: int, num_rows: int) -> None:  # noqa: ARG002
        self._deferred.leave()

    def close(self) -> None:
        self._ended = SessionClosed("the session is closed; open another with Client.session")
        self._release()

    def lose(self) -> None:
        self._is_lost = True
        self._replies.cancel()

    def _broken(self, error: LogitportError) -> LogitportError:
        self._end(ServerUnavailable(f"the connection to {self.target} was lost before: {error.message}"))
        self._release()
        return error


def _release(frames: _Frames, deadline: _Deadline, deferred: _DeferredReplies, replies: Any) -> None:
    frames.put(None)
    deadline.close()
    deferred.close()
    replies.cancel()


def _serialize(frame: processing_pb2.SessionRequest | bytes) -> bytes:
    return frame[LENGTH.size :] if isinstance(frame, bytes) else frame.SerializeToString()


class _DeferredReplies:
    """Replies that are left to the reader thread.

    A gRPC stream does not signal that a reply has arrived, so the thread waits for it in a blocking read. It skips a
    reply that the engine's thread has claimed: a handover between threads would only delay that reply.
    """

    def __init__(self) -> None:
        self._available = threading.Event()
        self._closed = False

    def leave(self) -> None:
        self._available.set()

    def claim(self) -> None:
        if self._available.is_set():
            self._available.clear()

    def close(self) -> None:
        self._closed = True
        self._available.set()

    def wait_for(self, take_early: Callable[[], object]) -> None:
        while self._available.wait() and not self._closed:
            time.sleep(_ENGINE_HEAD_START_SECONDS)
            if self._available.is_set() and not self._closed:
                self.claim()
                take_early()


class _Deadline:
    """Calls `expire` when the deadline passes.

    A blocking read of a gRPC stream takes no timeout. One thread checks the deadline periodically, because a new timer
    for each step would take longer than the step.

    After a pause of this process, as while a thread holds the GIL, a reply may have arrived that no thread has received
    yet. The deadline is then extended by a second.
    """

    _GRANULARITY = 0.05
    _PAUSE = _EXTENSION = 1.0

    def __init__(self, expire: Callable[[], object]) -> None:
        self._expire = expire
        self._lock = threading.Lock()
        self._passed = False
        self._at = float("inf")
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="logitport-deadline", daemon=True).start()

    def set(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def clear(self) -> bool:
        """Clear the deadline. Returns False if it has passed."""
        with self._lock:
            self._at = float("inf")
            return not self._passed

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        last = not_before = time.monotonic()
        while not self._closed.wait(self._GRANULARITY):
            now = time.monotonic()
            if now - last > self._PAUSE:
                not_before = now + self._EXTENSION
            last = now
            with self._lock:
                self._passed = now > max(self._at, not_before)
            if self._passed:
                self._expire()
                return
