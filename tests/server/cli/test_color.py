"""Colour and other escape sequences are for terminals alone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("logitport"))
ESCAPE = b"\x1b["


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "COLORTERM"}}
    return {**kept, "TERM": "xterm-256color", **variables}


def on_a_terminal(**variables: str) -> bytes:
    """Return what `logitport doctor` writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([COMMAND, "doctor"], stdout=theirs, env=environment(**variables)) as process:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 1 << 16):
                written += data
        except OSError:  # the end of a terminal
            pass
        assert process.wait(timeout=60) == 0
    os.close(ours)
    return written


def through_a_pipe(*arguments: str, **variables: str) -> bytes:
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, check=True, env=environment(**variables), timeout=60
    )
    return done.stdout


def test_a_terminal() -> None:
    assert ESCAPE in on_a_terminal()


@pytest.mark.parametrize("arguments", [["doctor"], ["--help"], ["serve", "--help"]])
def test_a_pipe(arguments: list[str]) -> None:
    assert ESCAPE not in through_a_pipe(*arguments)
