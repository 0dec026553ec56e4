"""Connections that break without gRPC's status UNAVAILABLE: streams that a proxy resets, and servers that stop."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, Request, ServerUnavailable, StateLost
from logitport.session.connection import frame_connection
from logitport.session.transports.local import LocalTransport
from logitport_proto import processing_pb2
from tests.client.scripted import VOCAB, Script, zeros
from tests.client.session.transports.scripted_server import scripted_server
from tests.client.session.transports.test_local_replies import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECONNECT_SECONDS = 120.0
SHORT = 0.2
READ_ROW_0 = {"edits": processing_pb2.StepEdits(logits_rows=bytes(4))}


def correct(session: int, frame: Any) -> dict[str, Any]:
    return Script.correct(frame)


class ResettingProxy:
    """Forwards bytes to a server. `reset` ends the streams of its connections as nginx does when the server is lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._clients: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self, stream: int) -> None:
        """Send RST_STREAM with INTERNAL_ERROR to all clients; the server must be idle."""
        frame = (4).to_bytes(3, "big") + b"\x03\x00" + stream.to_bytes(4, "big") + (2).to_bytes(4, "big")
        for client in self._clients:
            client.sendall(frame)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                self._clients.append(client)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)


@contextmanager
def reset_proxy(answer: Any = correct) -> Iterator[ResettingProxy]:
    with scripted_server(answer) as port:
        proxy = ResettingProxy(port)
        try:
            yield proxy
        finally:
            proxy.close()


def test_a_stream_that_a_proxy_resets_is_opened_again() -> None:
    with reset_proxy() as proxy, Client(f"127.0.0.1:{proxy.port}") as client:
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        handle = session.add(Request([1]))
        proxy.reset(stream=1)
        session.step({handle: [2]}).apply(zeros())
        assert session.reconnects == 1


def test_a_stream_that_a_proxy_resets_while_the_session_is_opened() -> None:
    opening = threading.Event()

    def silent_at_first(session: int, frame: Any) -> dict[str, Any] | None:
        opening.set()
        return Script.correct(frame) if session else None

    with reset_proxy(silent_at_first) as proxy, Client(f"127.0.0.1:{proxy.port}") as client:
        resetting = threading.Thread(target=lambda: opening.wait() and proxy.reset(stream=1))
        resetting.start()
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        session.add(Request([1]))
        resetting.join()


class Silence:
    """Answers correctly, but not to the frame of one kind in the first session.

    Args:
        kind: the kind of the frame.
        deadlines: what the server states when it opens a session.
        answer: the replies to other frames.
    """

    def __init__(self, kind: str, deadlines: dict[str, float], answer: Callable[[Any], Any] = Script.correct) -> None:
        self._kind = kind
        self._deadlines = deadlines
        self._answer = answer

    def __call__(self, session: int, frame: Any) -> dict[str, Any] | None:
        if session == 0 and frame.HasField(self._kind):
            return None
        reply = dict(self._answer(frame))
        if frame.HasField("open"):
            reply["opened"].MergeFrom(processing_pb2.SessionOpened(**self._deadlines))
        return reply


STATED = {"step_deadline_seconds": SHORT, "add_deadline_seconds": SHORT}


@pytest.fixture
def short_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_connection, "_MARGIN_SECONDS", SHORT)


@pytest.mark.usefixtures("short_margin")
@pytest.mark.parametrize("kind", ["add", "step", "remove"])
def test_a_frame_without_a_reply_is_repeated_on_a_new_connection(kind: str) -> None:
    with scripted_server(Silence(kind, STATED)) as port, Client(f"127.0.0.1:{port}") as client:
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        handle = session.add(Request([1]))
        session.step({handle: [2]}).apply(zeros())
        session.remove(handle)
        session.add(Request([1]))  # its reply follows that of the removal
        assert session.reconnects == 1


@pytest.mark.usefixtures("short_margin")
@pytest.mark.parametrize("kind", ["add", "step"])
def test_a_frame_that_takes_long_is_not_sent_to_another_server(kind: str) -> None:
    """The server has stated that it may take so long, for example to load a processor."""
    sessions: list[int] = []

    def answer(session: int, frame: Any) -> dict[str, Any] | None:
        sessions.append(session)
        if frame.HasField(kind):
            time.sleep(4 * SHORT)
        stated = {**STATED, f"{kind}_deadline_seconds": 1000.0}
        return Silence(kind, stated)(1, frame)

    with (
        scripted_server(answer) as first,
        scripted_server(answer) as second,
        Client([f"127.0.0.1:{port}" for port in (first, second)]) as client,
    ):
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        handle = session.add(Request([1]))
        session.step({handle: [2]}).apply(zeros())
        assert (session.reconnects, sessions) == (0, [0, 0, 0])


@pytest.mark.usefixtures("short_margin")
def test_logits_without_a_reply_fail_only_their_request() -> None:
    def answer(frame: Any) -> dict[str, Any]:
        return READ_ROW_0 if frame.HasField("step") else Script.correct(frame)

    with scripted_server(Silence("logits", STATED, answer)) as port, Client(f"127.0.0.1:{port}") as client:
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        read, other = session.add(Request([1])), session.add(Request([1]))
        result = session.step({read: []}).apply(zeros(), check=False)
        assert [type(error) for error in result.failures.values()] == [StateLost]
        assert session.step({other: []}).apply(zeros(), check=False).failures == {}


@pytest.mark.usefixtures("short_margin")
@pytest.mark.parametrize(
    "stated", [{}, *({"step_deadline_seconds": seconds} for seconds in (0.0, float("nan"), 1000.0))]
)
def test_the_timeout_of_the_client_is_for_servers_that_state_no_deadline_or_a_later_one(
    stated: dict[str, float],
) -> None:
    """For example a server with processors that may take any time."""
    with scripted_server(Silence("step", stated)) as port, Client(f"127.0.0.1:{port}", timeout=0.6) as client:
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        handle = session.add(Request([1]))
        with pytest.raises(ServerUnavailable, match=r"within 0\.6 s"):
            session.step({handle: [2]}).apply(zeros())
        assert session.reconnects == 0


@pytest.mark.parametrize("limit", [SHORT, 1000.0])
@pytest.mark.parametrize("waits", ["receive", "receive_region", "send"])
def test_a_local_transport_without_a_reply(waits: str, limit: float) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        local = LocalTransport(ours, Beside(), 0.5, 1 << 30)  # type: ignore[arg-type]
        local.reply_limit = limit
        frame = processing_pb2.SessionRequest(seq=2)
        frame.step.new_token_ids = bytes((1 << 24) if waits == "send" else 4)
        receive = local.receive if waits != "receive_region" else lambda: local.receive_region(8)
        with pytest.raises(ServerUnavailable):
            _ = local.send(frame), receive()  # type: ignore[func-returns-value]
        local.close()


class SilentFor:
    """The answers of a server that answers no frame in the sessions of these numbers."""

    def __init__(self, *sessions: int) -> None:
        self._sessions = sessions

    def __call__(self, session: int, frame: Any) -> dict[str, Any] | None:
        return None if session in self._sessions else Script.correct(frame)


def test_a_server_that_stops_while_a_session_is_opened_again() -> None:
    """One attempt does not use up the time for all, also if the server states no deadlines."""
    with reset_proxy(SilentFor(1, 2)) as proxy, Client(f"127.0.0.1:{proxy.port}", timeout=1.0) as client:
        session = client.session(vocab_size=VOCAB, reconnect_seconds=RECONNECT_SECONDS)
        handle = session.add(Request([1]))
        proxy.reset(stream=1)
        session.step({handle: [2]}).apply(zeros())
        assert session.reconnects == 1


def test_a_local_transport_that_is_not_accepted_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped server may accept the token later, and then refuses frames on its stream: another stream is used."""
    monkeypatch.setattr("logitport.session.transports.local._HANDSHAKE_SECONDS", SHORT)
    folder = tmp_path / "logitport-x"
    folder.mkdir(mode=0o700)
    offer = processing_pb2.LocalTransport(socket_path=str(folder / "session.sock"), access_token=bytes(32))
    sessions = []

    def answer(session: int, frame: Any) -> dict[str, Any]:
        sessions.append(session)
        reply = Script.correct(frame)
        if frame.HasField("open"):
            reply["opened"].local_transport.CopyFrom(offer)
        return reply

    with socket.socket(socket.AF_UNIX) as never_accepts:
        never_accepts.bind(offer.socket_path)
        never_accepts.listen()
        with scripted_server(answer) as port, Client(f"127.0.0.1:{port}") as client:
            session = client.session(vocab_size=VOCAB)
            session.add(Request([1]))
            assert session.transport == "grpc"
            with pytest.raises(ServerUnavailable, match="no local transport"):
                client.session(vocab_size=VOCAB, transport="local", reconnect_seconds=0)
    assert sessions[:3] == [0, 1, 1]


def test_a_server_that_is_not_there() -> None:
    """A session is opened at once or not at all: an engine decides how long it waits for its first server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Client(f"127.0.0.1:{port}") as client, pytest.raises(ServerUnavailable) as absent:
        client.session(vocab_size=VOCAB, reconnect_seconds=1e9)
    assert not absent.value.was_connected
