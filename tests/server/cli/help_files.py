"""The stored help of each command: `python -m tests.server.cli.help_files` writes it again."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logitport_server.cli.root import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "help"
COLUMNS = "100"


def commands(group: click.Group = ROOT, words: str = "") -> Iterator[str]:
    """Yield "" and the words of each command and subcommand."""
    yield words
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}".strip())
        else:
            yield f"{words} {name}".strip()


def help_of(command: str) -> str:
    """Return what the command prints with --help on a terminal of 100 columns."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        run([*command.split(), "--help"])
    return printed.getvalue()


def file_of(command: str) -> Path:
    """Return the file with the help of the command."""
    return FOLDER / f"{'-'.join(['logitport', *command.split()])}.txt"


if __name__ == "__main__":
    os.environ["COLUMNS"] = COLUMNS
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for each in commands():
        file_of(each).write_text(help_of(each))
