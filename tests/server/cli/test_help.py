"""The help of each command is the stored one; it waits for no library that only commands need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from logitport_server.cli.root import COMMANDS
from tests.server.cli.help_files import COLUMNS, FOLDER, commands, file_of, help_of

EVERY_COMMAND = [*commands()]
REMEDY = "if the change is intended: python -m tests.server.cli.help_files"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", COLUMNS)


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_the_help_is_the_stored_one(command: str) -> None:
    assert help_of(command) == file_of(command).read_text(), REMEDY


def test_no_other_file_is_stored() -> None:
    assert {*FOLDER.iterdir()} == {file_of(command) for command in EVERY_COMMAND}, REMEDY


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_no_types_of_python_are_shown(command: str) -> None:
    shown = re.findall(
        r"\b(?:null|None|Path|bool|float\b|list\[|dict\[|VALUE\b|PydanticUndefined|True|False)", help_of(command)
    )
    assert not shown


@pytest.mark.parametrize("command", EVERY_COMMAND)
@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_help_fills_the_terminal(command: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = help_of(command).splitlines()
    lengths = [len(line) for line in lines if not line.lstrip().startswith(("--", "Usage: "))]
    assert max(lengths) <= width
    assert max(lengths) > min(width, 80) * 0.7


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


@pytest.mark.slow
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


@pytest.mark.slow
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
