"""The help of each command is the stored one, and follows the width of the terminal."""

from __future__ import annotations

import re

import pytest

from tests.server.cli.help_files import COLUMNS, FOLDER, commands, file_of, help_of

COMMANDS = [*commands()]
REMEDY = "if the change is intended: python -m tests.server.cli.help_files"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", COLUMNS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_is_the_stored_one(command: str) -> None:
    assert help_of(command) == file_of(command).read_text(), REMEDY


def test_no_other_file_is_stored() -> None:
    assert {*FOLDER.iterdir()} == {file_of(command) for command in COMMANDS}, REMEDY


@pytest.mark.parametrize("command", COMMANDS)
def test_no_types_of_python_are_shown(command: str) -> None:
    shown = re.findall(
        r"\b(?:null|None|Path|bool|float\b|list\[|dict\[|VALUE\b|PydanticUndefined|True|False)", help_of(command)
    )
    assert not shown


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_help_fills_the_terminal(command: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = help_of(command).splitlines()
    lengths = [len(line) for line in lines if not line.lstrip().startswith(("--", "Usage: "))]
    assert max(lengths) <= width
    assert max(lengths) > min(width, 80) * 0.7
