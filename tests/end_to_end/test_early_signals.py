"""Signals that reach `logitport serve` before it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from logitport_sandbox import LAYERS
from tests.conftest import environment
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# Sends a signal to itself at each audit event whose name and arguments contain these texts. The events have an order
# that does not depend on the machine's speed.
PROGRAM = """
import os, sys
from logitport_server.cli.main import main
number, event, text = int(sys.argv[1]), *sys.argv[2:4]
def send(name, arguments):
    if event in name and text in str(arguments):
        os.kill(os.getpid(), number)
sys.argv = ["logitport", "serve", *sys.argv[4:]]
sys.addaudithook(send)
main()
"""
# An installed processor. Its import lasts until a file exists.
MODULE = """
import pathlib, time
pathlib.Path({folder!r}, "begun").touch()
while not pathlib.Path({folder!r}, "goes on").exists():
    time.sleep(0.01)
def nothing(input_ids, scores):
    return scores
"""


class Start:
    """Starts of one server with files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary, self.store = folder, folder / "tmp", folder / "store"
        self.temporary.mkdir()
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, number: int, event: str, text: str, *options: str) -> subprocess.Popen[str]:
        given = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--device", "cpu", "--store", self.store]
        given += ["--enable-custom-logit-processor"]
        given += [part for layer in LAYERS if layer.missing() for part in ("--layers", f"{layer.name}=off")]
        path = os.pathsep.join(filter(None, (str(self.folder), *sys.path)))
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(int(number)), event, text, *given, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), "TMPDIR": str(self.temporary), "PYTHONPATH": path},
        )
        self._processes.append(process)
        return process

    def hanging(self) -> subprocess.Popen[str]:
        """Start a server, and wait until an import of its zygote hangs."""
        (self.folder / "slow_to_import.py").write_text(MODULE.format(folder=str(self.folder)))
        process = self(0, "none", "none", "--logits-processors", "slow_to_import:nothing")
        wait_until((self.folder / "begun").exists)
        return process

    def check_end(self, process: subprocess.Popen[str], status: int) -> None:
        """Wait for the end of the server and of the processes that it has started: all have its stderr."""
        output, errors = process.communicate(timeout=100)
        assert process.returncode == status, errors
        assert output == ""
        assert "Traceback" not in errors, errors
        assert "logitport:" not in errors, errors
        assert list(self.temporary.iterdir()) == []

    def kill(self) -> None:
        """Kill the servers that a failed test has left."""
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    with TemporaryDirectory() as folder:  # not `tmp_path`: the path of a Unix socket has 107 bytes at most
        starts = Start(Path(folder))
        yield starts
        (starts.folder / "goes on").touch()
        starts.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("import", "logitport_server.cli.root"),
        ("import", "logitport_server.processes.single"),
        ("import", "logitport_server.server"),  # the zygotes have been launched
        ("sqlite3.connect", "registry.db"),
        ("open", "/unlocked"),  # the file of the lock in the server's folder
        ("socket.bind", "session.sock"),
    ],
)
def test_a_server_that_starts_ends_by_the_signal(number: signal.Signals, event: str, text: str, start: Start) -> None:
    start.check_end(start(number, event, text), -number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_waits_for_its_zygotes_ends_by_the_signal(number: signal.Signals, start: Start) -> None:
    process = start.hanging()
    assert process.stderr is not None
    while "cpu_regime" not in process.stderr.readline():  # it logs after the socket is made
        assert process.poll() is None
    process.send_signal(number)
    start.check_end(process, -number)


def test_the_zygotes_of_a_killed_server_end(start: Start) -> None:
    process = start.hanging()
    process.kill()
    output, errors = process.communicate(timeout=100)
    assert output == ""
    assert "Traceback" not in errors


def test_a_request_to_reload_does_not_end_a_server_that_starts(start: Start) -> None:
    process = start(signal.SIGHUP, "import", "")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("logitport listening on ")
    process.send_signal(signal.SIGTERM)
    start.check_end(process, 0)
