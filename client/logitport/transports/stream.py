"""Frames over a bidirectional gRPC stream: works everywhere."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import grpc

from logitport import calls
from logitport.errors import DeadlineExceeded, ServerUnavailable, SessionClosed
from logitport.transports.base import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_proto import processing_pb2, processing_pb2_grpc


class GrpcStream(Transport):
    """The stream of `LogitProcessing.Session`.

    Args:
        stub: of the client's channel.
        target: the server's address, for messages.
        timeout: the longest that a reply may take, in seconds.
        wait_seconds: how long to wait for a server; gRPC tries again with backoff and jitter. With 0 there must be one.
    """

    name = "grpc"

    def __init__(
        self,
        stub: processing_pb2_grpc.LogitProcessingStub,
        target: str,
        timeout: float,
        *,
        wait_seconds: float = 0.0,
    ) -> None:
        self.target = target
        self._timeout = timeout
        self._frames: queue.SimpleQueue[processing_pb2.SessionRequest | None] = queue.SimpleQueue()
        self._replies = stub.Session(self._outgoing(), wait_for_ready=wait_seconds > 0)
        self._first_timeout = wait_seconds or timeout
        self._deadline = _Deadline(self._replies.cancel)
        self._closed = False

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        self._frames.put(frame)

    def receive(self) -> processing_pb2.SessionResponse:
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        timeout, self._first_timeout = self._first_timeout, self._timeout
        self._deadline.set(timeout)
        try:
            reply: processing_pb2.SessionResponse = next(self._replies)
        except StopIteration:
            self.close()
            raise ServerUnavailable(f"{self.target} ended the session; open another with Client.session") from None
        except grpc.RpcError as error:
            passed = self._deadline.passed
            self.close()
            if passed:
                raise DeadlineExceeded(
                    f"{self.target} did not answer a frame within {timeout} s; the session is closed"
                ) from None
            raise calls.translate(error, self.target) from None
        self._deadline.clear()
        return reply

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._frames.put(None)
            self._deadline.close()
            self._replies.cancel()

    def _outgoing(self) -> Iterator[processing_pb2.SessionRequest]:
        while (frame := self._frames.get()) is not None:
            yield frame


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
