"""The exit status of the command: 0, 1, 2, or the signal that has ended it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logitport.core import compiled
from logitport_server.cli import main as command
from logitport_server.cli import root

COMMAND = str(Path(sys.executable).with_name("logitport"))
PAGE = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [("--print-config", 0), ("--max-workers 0", 2), pytest.param("--device cuda:99", 1, marks=pytest.mark.slow)],
)
def test_the_status_of_a_process(arguments: str, status: int) -> None:
    command = [COMMAND, "serve", "--listen", "127.0.0.1:0", *arguments.split()]
    assert subprocess.run(command, check=False, capture_output=True, timeout=200).returncode == status


def test_a_wrong_choice_of_the_core_is_one_line() -> None:
    """It is read while the package is imported."""
    command = [COMMAND, "serve", "--print-config"]
    variables = os.environ | {compiled.VARIABLE: "true"}
    done = subprocess.run(command, env=variables, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert done.stderr == (
        "logitport: LOGITPORT_PURE_PYTHON is 'true'; set it to 1 for pure Python, or to 0 for the compiled core\n"
    )


@pytest.mark.slow
def test_an_interrupted_command_ends_by_its_signal(tmp_path: Path) -> None:
    """A shell shows 128 and the number of the signal."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([COMMAND, "payload", "sign", str(pipe), "--key", "x"], stderr=subprocess.PIPE) as process:
        writer = os.open(pipe, os.O_WRONLY)  # returns when the command has opened the pipe to read from it
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
        os.close(writer)
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_command_in_the_background_ignores_interrupts(tmp_path: Path) -> None:
    """Scripts start such commands with SIGINT ignored: it is meant for the command in the foreground."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', COMMAND, "payload", "sign", str(pipe), "--key", "x"]
    with subprocess.Popen(ignoring, stderr=subprocess.PIPE) as process:
        writer = os.open(pipe, os.O_WRONLY)
        process.send_signal(signal.SIGINT)
        os.close(writer)
        assert process.wait(timeout=60) == 1, "the file is empty"


@pytest.mark.slow
def test_a_reader_that_has_gone() -> None:
    command = [COMMAND, "serve", "--print-config"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGPIPE
        assert process.stderr.read() == b""


def test_an_interrupt_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[signal.Signals] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(root, "run", interrupt)
    monkeypatch.setattr(command, "_end_by", ended.append)
    command.main()
    assert ended == [signal.SIGINT]


def test_the_page_and_the_help_have_every_status() -> None:
    table = PAGE[PAGE.index("| exit status |") :].partition("\n\n")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "130", "143"]
    done = subprocess.run([COMMAND, "--help"], check=True, capture_output=True, text=True, timeout=60)
    assert all(re.search(rf"\b{status}\b", done.stdout) for status in (0, 1, 2, 130, 143))
