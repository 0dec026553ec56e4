"""The conformance suite of every transport. Add a new transport to `connected`."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import grpc
import pytest

from logitport import LimitExceeded, LogitportError, ServerUnavailable, SessionClosed
from logitport.servers.connection import channel_options
from logitport.session.transports.embedded_transport import EmbeddedTransport
from logitport.session.transports.grpc_stream import GrpcStream
from logitport.session.transports.local import LocalTransport
from logitport_proto import common_pb2, processing_pb2
from logitport_session.embedded import EmbeddedSessions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session.transports.base import Transport

VOCAB = 1000
_SECONDS = 30.0
TRANSPORTS = ["grpc", "local", "embedded"]
every_transport = pytest.mark.parametrize("kind", TRANSPORTS)
# Those whose connection can be lost.
every_connection = pytest.mark.parametrize("kind", ["grpc", "local"])


@contextmanager
def connected(
    kind: str, target: str, *, timeout: float = _SECONDS, max_message_bytes: int = 64 << 20
) -> Iterator[Transport]:
    """A transport with an open session; its next frame has seq 2."""
    with grpc.insecure_channel(target, options=channel_options(max_message_bytes)) as channel:
        transport = connect(kind, target, channel, timeout, max_message_bytes)
        try:
            yield transport
        finally:
            transport.close()


def connect(
    kind: str, target: str, channel: grpc.Channel, timeout: float = _SECONDS, max_message_bytes: int = 64 << 20
) -> Transport:
    transport: Transport
    if kind == "embedded":
        transport = EmbeddedTransport(EmbeddedSessions().frames(), max_message_bytes)
    else:
        transport = GrpcStream(channel, target, timeout, max_message_bytes=max_message_bytes, wait_seconds=_SECONDS)
    opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
    transport.send(processing_pb2.SessionRequest(seq=1, open=opening))
    opened = receive(transport).opened
    return transport if kind != "local" else LocalTransport.connect(opened.local_transport, transport, timeout)


def receive(transport: Transport) -> processing_pb2.SessionResponse:
    return processing_pb2.SessionResponse.FromString(transport.receive())


def frame(seq: int, prompt_length: int = 0) -> processing_pb2.SessionRequest:
    request = common_pb2.Request(prompt_token_ids=[7] * prompt_length)
    slotted = processing_pb2.SlottedRequest(slot=seq % 100, request=request)
    return processing_pb2.SessionRequest(seq=seq, add=processing_pb2.AddRequests(requests=[slotted]))


@every_transport
def test_name_and_target(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        target = "embedded" if kind == "embedded" else server.target
        assert (transport.name, transport.target) == (kind, target)


@every_transport
def test_one_reply_per_frame_in_order(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        for seq in range(2, 22):
            transport.send(frame(seq))
        for seq in range(2, 22):
            reply = receive(transport)
            assert (reply.seq, reply.WhichOneof("frame")) == (seq, "added")


@every_transport
def test_frames_of_any_size(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        for seq, length in enumerate([0, 1, 5_000_000, 1], 2):
            transport.send(frame(seq, length))
            assert receive(transport).seq == seq


@every_transport
def test_a_frame_over_the_limit_is_not_sent_and_the_transport_stays_open(server: Any, kind: str) -> None:
    with connected(kind, server.target, max_message_bytes=1 << 16) as transport:
        with pytest.raises(LimitExceeded, match="max_message_bytes"):
            transport.send(frame(2, 1 << 16))
        transport.send(frame(2))
        assert receive(transport).seq == 2


@every_connection
def test_a_missed_deadline_closes_the_transport(server: Any, kind: str) -> None:
    with connected(kind, server.target, timeout=3.0) as transport:
        with pytest.raises(ServerUnavailable, match=r"did not reply to a frame within 3\.0 s"):
            transport.receive()
        for call in uses(transport):
            with pytest.raises(SessionClosed):
                call()


class LateReplies:
    """A gRPC stream with a reply that arrives while the call is cancelled."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def __next__(self) -> bytes:
        assert self._cancelled.wait(_SECONDS)
        return b""

    def cancel(self) -> None:
        self._cancelled.set()


def test_a_reply_that_arrives_while_the_deadline_passes() -> None:
    """This frame has missed the deadline, not the next one."""
    channel = Mock(stream_stream=Mock(return_value=Mock(return_value=LateReplies())))
    transport = GrpcStream(channel, "there", _SECONDS)
    transport.reply_limit = 0.1
    with pytest.raises(ServerUnavailable, match=r"there .*0\.1 s") as error:
        transport.receive()
    assert error.value.was_connected
    transport.close()


class RepliesDuringAPause:
    """A gRPC stream with a reply that arrives while this process is paused, and is received after it goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cancelled = False
        self._looks = threading.Semaphore(0)

    def clock(self) -> float:
        self._looks.release()
        return self.now

    def __next__(self) -> bytes:
        self.now += 100.0
        for _ in range(20):  # of the thread that checks the deadline
            assert self._looks.acquire(timeout=_SECONDS)
        if self.cancelled:
            raise StopIteration
        return b"reply"

    def cancel(self) -> None:
        self.cancelled = True


def test_a_reply_that_arrives_during_a_pause_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = RepliesDuringAPause()
    monkeypatch.setattr(
        "logitport.session.transports.grpc_stream.time", Mock(monotonic=replies.clock, sleep=time.sleep)
    )
    channel = Mock(stream_stream=Mock(return_value=Mock(return_value=replies)))
    transport = GrpcStream(channel, "there", _SECONDS)
    assert transport.receive() == b"reply"
    transport.close()


def uses(transport: Transport) -> list[Callable[[], Any]]:
    return [lambda: transport.send(frame(2)), transport.receive]


@every_transport
def test_after_close(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        transport.close()
        transport.close()
        for call in uses(transport):
            with pytest.raises(SessionClosed):
                call()


@every_connection
def test_close_wakes_a_waiting_thread(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        raised: list[LogitportError] = []

        def wait() -> None:
            try:
                transport.receive()
            except LogitportError as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        transport.close()
        waiting.join(_SECONDS)
        assert not waiting.is_alive()
        assert raised


@every_connection
def test_a_server_that_has_ended(start_server: Callable[..., Any], kind: str) -> None:
    """Every call raises ServerUnavailable, on which a session reconnects, until the transport is closed."""
    server = start_server()
    with connected(kind, server.target) as transport:
        server.process.kill()
        server.process.wait()
        with suppress(ServerUnavailable):  # the first frame may still fit into a buffer
            transport.send(frame(2))
        with pytest.raises(ServerUnavailable):
            transport.receive()
        for call in uses(transport):
            with pytest.raises(ServerUnavailable):
                call()
        transport.close()
        for call in uses(transport):
            with pytest.raises(SessionClosed):
                call()


@every_connection
@pytest.mark.parametrize("waits", [True, False])
def test_a_connection_that_is_lost_from_outside(server: Any, kind: str, waits: bool) -> None:
    with connected(kind, server.target) as transport:
        losing = threading.Timer(0.1 if waits else 0.0, transport.lose)
        losing.start()
        if not waits:
            losing.join()
            assert transport.has_ended
            with suppress(ServerUnavailable):
                transport.send(frame(2))
        with pytest.raises(ServerUnavailable, match="answers neither a frame nor calls"):
            transport.receive()
        for call in uses(transport):
            with pytest.raises(ServerUnavailable):
                call()
        transport.lose()


@every_transport
def test_threads_end_with_it(server: Any, kind: str) -> None:
    before = our_threads()
    with connected(kind, server.target) as transport:
        transport.on_readable(lambda: None)
    wait_until(lambda: our_threads() <= before, threading.enumerate)


@every_transport
def test_an_unclosed_transport_ends_when_it_is_collected(server: Any, kind: str) -> None:
    before = our_threads()
    with grpc.insecure_channel(server.target) as channel:
        transport = connect(kind, server.target, channel)
        transport.on_readable(lambda: None)
        sockets = [transport._connection] if isinstance(transport, LocalTransport) else []
        del transport
        gc.collect()
        wait_until(lambda: our_threads() <= before, threading.enumerate)
        assert [one.fileno() for one in sockets] == [-1] * len(sockets)


def our_threads() -> set[object]:
    """Threads of the client: of Python, and ids of those of the compiled core."""
    named = {thread for thread in threading.enumerate() if thread.name.startswith("logitport")}
    return named | {file.parent.name for file in Path("/proc/self/task").glob("*/comm") if is_early(file)}


def is_early(file: Path) -> bool:
    try:
        return file.read_text() == "logitport-early\n"
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


@pytest.mark.parametrize("kind", ["grpc"])  # the thread of the local transport is of the core, and calls nothing
def test_the_thread_is_called_once_for_each_reply_that_is_left(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        called = threading.Semaphore(0)
        transport.on_readable(called.release)
        for seq in range(2, 5):
            transport.send(frame(seq))
            transport.leave_reply(None, seq, 0)
            assert called.acquire(timeout=_SECONDS)
            assert not called.acquire(timeout=0.1)
            assert receive(transport).seq == seq


@pytest.mark.parametrize("kind", ["grpc"])
def test_the_thread_is_not_called_for_other_replies(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        called = threading.Event()
        transport.on_readable(called.set)
        transport.send(frame(2))
        assert not called.wait(0.2)
        transport.leave_reply(None, 2, 0)
        assert receive(transport).seq == 2  # claims the reply, unless the thread was woken before
        called.wait(1.0)  # a thread that was woken may still be running
        called.clear()
        transport.send(frame(3))
        assert not called.wait(0.2)
        assert receive(transport).seq == 3


@every_transport
def test_the_thread_ends_with_the_connection(start_server: Callable[..., Any], kind: str) -> None:
    """It ends when the server ends; over gRPC at the first call that fails, because gRPC does not signal the end."""
    server, before = start_server(), our_threads()
    with connected(kind, server.target) as transport:
        transport.on_readable(lambda: None)
        server.process.kill()
        if kind == "grpc":
            with pytest.raises(ServerUnavailable):
                transport.receive()
        wait_until(lambda: not any(is_reader(thread) for thread in our_threads() - before))


def is_reader(thread: object) -> bool:
    return not isinstance(thread, threading.Thread) or thread.name == "logitport-reader"


@every_transport
def test_replies_that_are_left_arrive_in_order(server: Any, kind: str) -> None:
    with connected(kind, server.target) as transport:
        transport.on_readable(lambda: None)
        for seq in range(2, 22):
            transport.send(frame(seq, 20_000 * (seq % 3)))
            transport.leave_reply(None, seq, 0)
            if seq % 2:
                time.sleep(0.01)  # the thread receives it
            received = transport.receive_step()
            assert isinstance(received, bytes)
            assert processing_pb2.SessionResponse.FromString(received).seq == seq
