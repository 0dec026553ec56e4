"""Imports of the command: `--version` and `--help` must not wait for libraries that only commands need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from logitport_server.cli.root import COMMANDS, run

SLOW = {"pydantic", "torch", "numpy", "rich", "grpc", "aiolimiter", "asyncio", "logitport"}


def imported_by(*arguments: str) -> set[str]:
    """Top-level modules that the command has imported when it ends."""
    code = """
import sys
from logitport_server.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["nonsense"], ["ray"], ["payload", "--help"]])
def test_nothing_slow_is_imported_before_a_command(arguments: list[str]) -> None:
    imported = imported_by(*arguments)
    assert "logitport_server" in imported
    assert not imported & SLOW


def test_the_options_of_a_command_need_no_torch() -> None:
    """One process prints the help of all commands, one after the other."""
    code = """
import contextlib, sys
from logitport_server.cli import root
for command in root.COMMANDS:
    with contextlib.suppress(SystemExit):
        root.run([command, "--help"])
    if "torch" in sys.modules:
        sys.exit(f"{command} imports torch")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: logitport ") >= len(COMMANDS)


def test_serve_launches_the_zygotes_before_it_imports_the_rest() -> None:
    code = """
import sys
from logitport_server.cli import root
from logitport_server.processes import single
def start(config):
    sys.exit(f"imported: {sys.modules.keys() & {'grpc', 'torch'}}")
single.launch = start
root.run(["serve"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert done.stderr == "imported: set()\n"


def test_the_number_of_commands() -> None:
    """Each one is learnt and documented: a new one belongs to a group, or replaces another."""
    assert len(COMMANDS) <= 13


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(re.search(rf" {name} [a-z]", printed) for name in COMMANDS)
