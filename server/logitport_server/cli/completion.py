"""`logitport completion`."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING, Literal

import shtab
from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport_server.cli.root import COMMANDS
from logitport_server.command_line.fields import connect
from logitport_server.command_line.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Iterator

# Arguments that are files.
_FILES = ("FILES", "PATH", "PAYLOAD", "FILE:CLASS")


class Completion(BaseModel):
    """Print a script that completes commands, options and files in a shell.

    bash: logitport completion bash > ~/.local/share/bash-completion/completions/logitport

    zsh: logitport completion zsh > DIR/_logitport, where DIR is in $fpath

    fish: logitport completion fish > ~/.config/fish/completions/logitport.fish
    """

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(description="bash, zsh or fish")

    def cli_cmd(self) -> None:
        """Print the script."""
        print(shtab.complete(_parser(), self.shell))  # noqa: T201


def _parser() -> Parser:
    """Return the parser of all commands, with what completes the values of their options."""
    parser = Parser(prog="logitport")
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        model = command.load()
        connect(model, commands.add_parser(name, help=command.description, description=inspect.getdoc(model)))
    for action in _actions(parser):
        metavar = str(action.metavar)
        if metavar == "DIR":
            action.complete = shtab.DIR  # type: ignore[attr-defined] # shtab reads it
        elif metavar == "FILE" or (not action.option_strings and metavar in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the actions of the parser and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
