"""The completion of bash, by a real bash; those of zsh and fish, where these are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logitport_server.cli.root import COMMANDS

COMMAND = str(Path(sys.executable).with_name("logitport"))
# Calls the function that bash would call, with the words before the cursor.
COMPLETE = """
eval "$(_LOGITPORT_COMPLETE=bash_source logitport)"
compopt() { echo "$2"; }
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_logitport_completion logitport "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def run(command: list[str], **variables: str) -> str:
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | variables
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert not done.stderr
    return done.stdout


def complete(*words: str) -> list[str]:
    return run(["bash", "--norc", "-c", COMPLETE, "bash", "logitport", *words]).splitlines()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["ser"], ["serve"]),
        (["serve", "--metrics"], ["--metrics-listen"]),
        (["serve", "--log-level", "w"], ["warning"]),
        (["serve", "--no-prog"], ["--no-programs"]),
        (["ray", ""], ["up", "status", "down"]),
        (["ray", "up", "--unh"], ["--unhealthy-seconds"]),
        (["payload", "sign", "--key", "te"], ["default", ""]),  # bash completes files itself
        (["payload", "inspect", "te"], ["default", ""]),
        (["serve", "--trusted-keys", "t"], ["dirnames", ""]),
        (["serve", "--max-workers", "1"], [""]),
    ],
)
@pytest.mark.slow
def test_bash(words: list[str], completed: list[str]) -> None:
    assert complete(*words) == completed


def test_all_commands() -> None:
    assert complete("") == [*COMMANDS]
