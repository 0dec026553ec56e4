"""Servers that offer a local transport whose socket belongs to another program: no byte may reach that program."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, Request, ServerUnavailable
from logitport.session.transports import trusted_socket
from logitport_proto import processing_pb2
from tests.client.scripted import Script
from tests.client.session.transports.scripted_server import scripted_server
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = bytes(range(32))
WELCOME = b"\1"
OTHER_USER = 65534


class Victim:
    """A program that listens on a Unix socket, records the bytes that it receives, and answers with the welcome."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self.received = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(SECONDS)
                if (data := connection.recv(1 << 16)) == b"end":
                    return
                self.received += data
                with suppress(OSError):
                    connection.sendall(WELCOME)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.path))
            connection.sendall(b"end")
        self._thread.join(SECONDS)
        self._socket.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """A victim with a socket that has the name, folder, mode and owner of a server's socket."""
    with closing(Victim(tmp_path / "logitport-x" / "session.sock")) as program:
        yield program


@contextmanager
def lying_server(path: object, token: bytes = TOKEN) -> Iterator[int]:
    """Run a server that offers this local transport; the context is its port on loopback."""
    local = processing_pb2.LocalTransport(socket_path=str(path), access_token=token, max_message_bytes=1 << 20)

    def answer(session: int, frame: Any) -> dict[str, Any]:
        reply = Script.correct(frame)
        if frame.HasField("open"):
            reply["opened"].local_transport.CopyFrom(local)
        return reply

    with scripted_server(answer) as port:
        yield port


def session_stays_on_grpc(target: str, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Check that a session works over gRPC, that one line of the log has the reason, and that "local" is refused."""
    caplog.set_level(logging.INFO, "logitport")
    with Client(target) as client:
        with client.session(vocab_size=4) as session:
            assert session.transport == "grpc"
            session.add(Request([1]))
        (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("logitport.session")]
        assert reason in line
        assert "gRPC" in line
        with pytest.raises(ServerUnavailable) as refused:
            client.session(vocab_size=4, transport="local")
        assert reason in str(refused.value)


def test_a_correct_offer_is_used(victim: Victim) -> None:
    with lying_server(victim.path) as port, Client(f"127.0.0.1:{port}") as client:
        client.session(vocab_size=4, transport="local").close()
    assert victim.received == TOKEN


@pytest.mark.parametrize("length", [0, 1, 31, 33, 5000])
def test_a_token_of_another_length(victim: Victim, length: int, caplog: pytest.LogCaptureFixture) -> None:
    with lying_server(victim.path, b"x" * length) as port:
        session_stays_on_grpc(f"127.0.0.1:{port}", caplog, f"token of {length} bytes")
    assert victim.received == b""


def test_a_target_on_another_host(victim: Victim, caplog: pytest.LogCaptureFixture) -> None:
    with lying_server(victim.path) as port:
        # A list of addresses: it reaches this host, but the client cannot know that before it connects.
        session_stays_on_grpc(f"ipv4:127.0.0.1:{port},127.0.0.1:{port}", caplog, "not a loopback address")
    assert victim.received == b""


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o770, 0o701])
def test_a_folder_that_others_can_access(victim: Victim, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    victim.path.parent.chmod(mode)
    with lying_server(victim.path) as port:
        session_stays_on_grpc(f"127.0.0.1:{port}", caplog, f"mode {mode:04o}")
    assert victim.received == b""


@pytest.mark.parametrize(
    ("function", "replacement", "reason"),
    [
        pytest.param(
            "_trusted_users", lambda: {OTHER_USER}, f"belongs to user {os.geteuid()}", id="a folder of another user"
        ),
        pytest.param(
            "_user_of_peer", lambda _: OTHER_USER, f"user {OTHER_USER} listens", id="a program of another user"
        ),
    ],
)
def test_another_user(
    victim: Victim,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    replacement: Any,
    reason: str,
) -> None:
    monkeypatch.setattr(trusted_socket, function, replacement)
    with lying_server(victim.path) as port:
        session_stays_on_grpc(f"127.0.0.1:{port}", caplog, reason)
    assert victim.received == b""


@pytest.mark.parametrize("name", ["logitport-x/agent.sock", "gnupg/session.sock"])
def test_a_private_socket_of_another_program(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The sockets of an SSH or GPG agent lie in private folders of the same user."""
    with closing(Victim(tmp_path / name)) as victim, lying_server(victim.path) as port:
        session_stays_on_grpc(f"127.0.0.1:{port}", caplog, "not the name of a server's socket")
    assert victim.received == b""


def test_links_to_another_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Victim(tmp_path / "run" / "session.sock")) as victim:
        (tmp_path / "logitport-x").symlink_to(victim.path.parent)
        with lying_server(tmp_path / "logitport-x" / "session.sock") as port:
            session_stays_on_grpc(f"127.0.0.1:{port}", caplog, "logitport-x")
    assert victim.received == b""


def test_a_folder_that_is_replaced_after_it_was_checked(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = trusted_socket._check_folder

    def check_and_replace(folder: Path, descriptor: int) -> None:
        check(folder, descriptor)
        folder.rename(tmp_path / "logitport-y")
        folder.symlink_to(other.path.parent)
        victim.path = tmp_path / "logitport-y" / "session.sock"

    monkeypatch.setattr(trusted_socket, "_check_folder", check_and_replace)
    with (
        closing(Victim(tmp_path / "run" / "session.sock")) as other,
        lying_server(victim.path) as port,
        Client(f"127.0.0.1:{port}") as client,
    ):
        client.session(vocab_size=4, transport="local").close()
    assert other.received == b""


PATHS = ["", "session.sock", "logitport-x/session.sock", "\0logitport-x/session.sock", "/a\0/logitport-x/session.sock"]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_are_no_paths(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with lying_server(path) as port:
        session_stays_on_grpc(f"127.0.0.1:{port}", caplog, "not the name of a server's socket")
