"""Commands for running servers: wrong targets, other services, wrong files, and terminals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitport import Client, ServerUnavailable
from logitport_runner.in_thread import ThreadServer
from tests.conftest import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

COMMANDS = [("status",), ("top", "--once"), ("sessions", "list"), ("processors", "list")]
every_command = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@pytest.fixture(scope="module")
def another_service() -> Iterator[str]:
    """Address of a gRPC server that has none of the calls."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@every_command
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("localhost", "target 'localhost' has no port"),
        ("http://127.0.0.1:50051", "is a URL"),
        ("file:/missing.json", "cannot read /missing.json"),
        ("", "no port"),
    ],
)
def test_a_target_that_is_none(logitport: Any, command: tuple[str, ...], target: str, message: str) -> None:
    ended = logitport(*command, target)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert message in ended.err


@every_command
def test_a_server(logitport: Any, command: tuple[str, ...], server: RunningServer) -> None:
    ended = logitport(*command, server.target, *([] if "top" in command else ["--json"]))
    assert (ended.status, ended.err) == (0, "")
    assert ended.out


def test_a_server_that_drains(logitport: Any) -> None:
    server = ThreadServer({})
    try:
        ended = logitport("drain", server.target)
        assert (ended.status, ended.err) == (0, "")
        with Client(server.target, timeout=1.0) as client, pytest.raises(ServerUnavailable):
            client.session(vocab_size=8)
    finally:
        server.stop()


@every_command
def test_a_server_that_cannot_be_reached(logitport: Any, command: tuple[str, ...]) -> None:
    ended = logitport(*command, "127.0.0.1:1")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("logitport: no connection to 127.0.0.1:1")


@every_command
def test_a_server_without_the_call(logitport: Any, command: tuple[str, ...], another_service: str) -> None:
    ended = logitport(*command, another_service)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert f"{another_service} does not have this call" in ended.err
    assert "its version of logitport differs" in ended.err


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("{}/bans.py", 2, "name its class, too"),
        ("{}/bans.py:", 2, "is not FILE:CLASS"),
        ("{}/bans.py:1x", 2, "is not FILE:CLASS"),
        (":Ban", 2, "is not FILE:CLASS"),
        ("{}/missing.py:Ban", 1, "is no Python file"),
        ("{}/missing.json", 1, "cannot read a payload from"),
        ("{}/bans.py:BanFrensh", 1, "bans.py has no BanFrensh; did you mean BanFrench?"),
        ("{}/bans.py:Zzz", 1, "bans.py has no Zzz"),
        ("{}/raises.py:Ban", 1, "cannot execute {}/raises.py: ZeroDivisionError: division by zero (line 2)"),
        ("{}/exits.py:Ban", 1, "cannot execute {}/exits.py: SystemExit: 3 (line 1)"),
        ("{}/broken.py:Ban", 1, "SyntaxError"),
        ("{}/json.py:Ban", 1, "there is another module json"),
        ("{}/torch.py:Ban", 1, "there is another module torch"),
        ("{}/bans.py:plain", 1, "is no processor"),
        ("{}/text.json", 1, "is not a serialized processor"),
    ],
)
def test_sources_that_cannot_be_registered(
    server: RunningServer, logitport: Any, tmp_path: Path, source: str, status: int, message: str
) -> None:
    files = {
        "bans.py": "class BanFrench: pass\nplain = 3\n",
        "raises.py": "x = 1\nx / 0\n",
        "exits.py": "raise SystemExit(3)\n",
        "broken.py": "class\n",
        "json.py": "class Ban: pass\n",
        "torch.py": "class Ban: pass\n",
        "text.json": "hello",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ended = logitport("processors", "register", server.target, source.format(tmp_path))
    assert (ended.status, ended.out) == (status, "")
    assert message.format(tmp_path) in ended.err
    assert "Traceback" not in ended.err


def test_an_error_of_a_server_is_escaped(server: RunningServer, logitport: Any) -> None:
    ended = logitport("processors", "get", server.target, "\x1b[31mred")
    assert ended.status == 1
    assert "\x1b" not in ended.err
    assert "[31mred" in ended.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
@pytest.mark.slow
def test_top_in_a_terminal(server: RunningServer, number: signal.Signals, status: int) -> None:
    """It shows one interval after the other, until a signal ends it."""
    controller, terminal = pty.openpty()
    settings = {**environment(), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "20"}
    with subprocess.Popen(
        [COMMAND, "top", server.target, "--interval", "100ms"], stdout=terminal, stderr=terminal, env=settings
    ) as process:
        os.close(terminal)
        shown, deadline = b"", time.monotonic() + 120
        while shown.count(b"Ctrl-C ends") < 3:
            assert time.monotonic() < deadline, shown
            assert process.poll() is None, shown
            if select.select([controller], [], [], 1.0)[0]:
                shown += os.read(controller, 1 << 16)
        process.send_signal(number)
        while True:
            try:
                shown += os.read(controller, 1 << 16)
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == status
    os.close(controller)
    text = shown.decode()
    assert text.startswith("\x1b[?1049h")  # the alternate screen
    assert "\x1b[?1049l" in text
    assert "\x1b[?25h" in text  # the cursor is shown again
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"SERVER +STATE +UPTIME +SESSIONS", plain)
    assert server.target in plain
    assert "Traceback" not in plain
