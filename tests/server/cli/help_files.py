"""The stored help of each command: `python -m tests.server.cli.help_files` writes it again."""

from __future__ import annotations

import argparse
import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_server.cli.options import parser_of
from logitport_server.cli.root import COMMANDS, run
from logitport_server.command_line.fields import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "help"
COLUMNS = "100"


def commands() -> list[str]:
    """Return "" and the words of each command and subcommand."""
    found = [""]
    for name, command in COMMANDS.items():
        model = command.load()
        parser = parser_of(name, model)
        connect(model, parser)
        found += _with_subcommands(name, parser)
    return found


def _with_subcommands(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield name
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, subparser in action.choices.items():
                yield from _with_subcommands(f"{name} {word}", subparser)


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
