"""`logitport`: the table of its commands, and the options before a command.

Importing pydantic and the commands takes a second. So argparse handles `--version`, `--help` and a wrong command, and
only the command that runs is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, NamedTuple

from logitport_server.command_line.parser import WRONG_USAGE, Parser, ParserError

if TYPE_CHECKING:
    from pydantic import BaseModel


class Command(NamedTuple):
    """One command.

    Attributes:
        module: the module below `logitport_server.cli` that defines it.
        model: name of the class with the command's options as its fields.
        description: one line for `logitport --help`.
        passes_on: a subcommand, and its field that gets the arguments after "--": options of another command.
    """

    module: str
    model: str
    description: str
    passes_on: tuple[str, str] | None = None

    def load(self) -> type[BaseModel]:
        """Import the class of the command's options."""
        module = importlib.import_module(f"logitport_server.cli.{self.module}")
        model: type[BaseModel] = getattr(module, self.model)
        return model


# By purpose, in the order of the help.
GROUPS = {
    "Servers": {
        "serve": Command("serve", "Serve", "run the service"),
        "ray": Command("ray", "Ray", "run a fleet of servers on Ray", passes_on=("up", "serve_options")),
    },
    "Running servers": {
        "status": Command("status", "Status", "show the state of servers"),
        "top": Command("top", "Top", "watch servers: sessions, steps, times of processors, workers"),
        "sessions": Command("sessions", "Sessions", "list the sessions of servers"),
        "processors": Command("processors", "Processors", "list, show, register and delete processors"),
        "drain": Command("drain", "Drain", "move the sessions of a server to other servers"),
        "unquarantine": Command("unquarantine", "Unquarantine", "lift the quarantine of a processor"),
    },
    "Access and signatures": {
        "token": Command("token", "Token", "create a token for a caller"),
        "keygen": Command("keygen", "Keygen", "create a key pair for signing payloads"),
        "sign": Command("sign", "Sign", "sign a payload"),
        "inspect": Command("inspect", "Inspect", "show what a payload would do, without running it"),
    },
    "Tools": {
        "play": Command("play", "Play", "show in the browser what a chain of processors does"),
        "check": Command("check", "Check", "search for defects of processors"),
        "replay": Command("replay", "Replay", "compare another version of a processor with a recorded one"),
        "doctor": Command("doctor", "Doctor", "show which sandbox layers this machine has, and test them"),
        "ops": Command("ops", "Ops", "list the ops that apply edits, and their implementations"),
        "version": Command("version", "Version", "print versions"),
        "completion": Command("completion", "Completion", "print a script that completes commands in a shell"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def run(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name (default: those of the process).

    An invalid option ends the process with status 2 and one line for each option.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] not in COMMANDS:
        parser = _Parser()
        try:
            parser.parse_args(arguments or ["--help"])
            parser.error("the first argument must be a command")
        except ParserError as error:
            error.exit()
    name, *options = arguments
    command = COMMANDS[name]
    try:
        _import_logitport()
        from logitport_server.cli.options import run_command

        model = command.load()
    except ModuleNotFoundError as error:
        from logitport.installation import how_to_install

        sys.exit(f"logitport: {error.name} is not installed; install it {how_to_install('server')}")
    run_command(name, model, options, passes_on=command.passes_on)


def _import_logitport() -> None:
    """Import the SDK, which reads a variable then. An invalid value ends the process with status 2 and one line."""
    try:
        importlib.import_module("logitport")
    except ValueError as error:  # InvalidArgument, which cannot be imported in this case
        print(f"logitport: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(WRONG_USAGE)


class _Parser(Parser):
    """A parser for arguments that do not begin with a command. It prints their output, or an error."""

    def __init__(self) -> None:
        super().__init__(
            prog="logitport",
            usage="logitport [--version] COMMAND ...",
            description="A logit-processor service.\n\n`logitport COMMAND --help` shows the options of a command.",
        )
        self.add_argument("--version", action=_PrintVersion, help="print the version")
        commands = self.add_subparsers(help=argparse.SUPPRESS, parser_class=Parser)
        for name in COMMANDS:
            commands.add_parser(name, add_help=False)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, (), ())
        formatter.add_text(self.description)
        for heading, group in GROUPS.items():
            formatter.start_section(heading)
            for name, command in group.items():
                formatter.add_argument(argparse.Action([], name, help=command.description))
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class _PrintVersion(argparse.Action):
    """Prints the version. argparse's own action needs the version beforehand, which takes 0.1 s to find."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:  # noqa: A002 - argparse's name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from logitport_server.version import VERSION

        print(VERSION)  # noqa: T201
        parser.exit()
