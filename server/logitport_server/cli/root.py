"""`logitport`: its commands. Importing pydantic and a command takes a second, so only the command that runs is."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

EXIT_STATUS = (
    "Exit status: 0 if the command has succeeded, 1 if it has failed, 2 if its options, its variables or its "
    "configuration file are wrong. A shell shows 130 after SIGINT and 143 after SIGTERM."
)
# A shell sets it to complete words.
_COMPLETE = "_LOGITPORT_COMPLETE"
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 1000}
# Options of other servers with the meaning of --listen: the words are not similar.
_LIKE_LISTEN = ("--port", "--host", "--bind", "--address")
# The line of the help breaks at spaces alone: a flag stays in one piece.
_NO_BREAK = "\N{NON-BREAKING HYPHEN}"


class Command(click.Command):
    """A command whose options are the fields of a pydantic model, which its method `run` runs.

    Args:
        name: of the command.
        path: "module:Class" of the model, ".module:Class" for a module of this package. It is imported when the options
            are needed.
        description: a line for the help of the group.
    """

    def __init__(self, name: str, path: str, description: str) -> None:
        super().__init__(name, short_help=description, epilog=EXIT_STATUS, context_settings=_SETTINGS)
        self._path = path

    def load(self) -> Any:
        """Import the model."""
        module, _, name = self._path.partition(":")
        return getattr(_import(module), name)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            _import("logitport.core.compiled")
            model = self.load()
            self.help = inspect.getdoc(model)
            self.params = _import("logitport_server.command_line").parameters_of(model)
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> None:
        from logitport.errors import LogitportError, escaped
        from logitport_server.cli.advice import with_flags
        from logitport_server.command_line import read_options
        from logitport_server.lifecycle.start_errors import StartupError, UsageError

        try:
            read_options(self.load(), ctx).run()
        except UsageError as error:
            raise click.UsageError(str(error)) from None
        except (LogitportError, StartupError) as error:  # it may quote a server, or a name of another caller
            raise click.ClickException(escaped(with_flags(str(error)))) from None

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace(_NO_BREAK, "-")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                sections.setdefault(getattr(option, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(names, text.replace("-", _NO_BREAK)) for names, text in records])


class CommandGroup(click.Group):
    """Commands that the help shows in their order, under headings."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, help=text, epilog=EXIT_STATUS, no_args_is_help=False, context_settings=_SETTINGS)
        self._sections: dict[str, list[tuple[str, str]]] = {}

    def add(self, command: click.Command, text: str, heading: str) -> None:
        """Add a command, with a line of the help."""
        self.add_command(command)
        self._sections.setdefault(heading, []).append((command.name or "", text))

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click sorts them
        return [*self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, lines in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


# By purpose, in the order of the help. A command without a class is a group.
_TABLE = {
    "Servers": (
        ("serve", ".serve:Serve", "run the service"),
        ("ray", "", "run a fleet of servers on Ray"),
        ("ray up", "logitport_fleet.commands:Up", "start a fleet, or change its size"),
        ("ray status", "logitport_fleet.commands:ShowFleet", "show the servers of a fleet"),
        ("ray down", "logitport_fleet.commands:Down", "end a fleet"),
    ),
    "Running servers": (
        ("status", ".status:Status", "show the state of servers"),
        ("top", ".top:Top", "watch servers: sessions, steps, times of processors, workers"),
        ("sessions", "", "list the sessions of servers"),
        ("sessions list", ".sessions:ListSessions", "list the open sessions"),
        ("processors", "", "list, show, register, delete and unquarantine processors"),
        ("processors list", ".processors:ListProcessors", "list processors"),
        ("processors get", ".processors:GetProcessor", "show one processor"),
        ("processors register", ".processors:RegisterProcessor", "register a class of a file, or a payload"),
        ("processors delete", ".processors:DeleteProcessor", "delete a name or a processor"),
        ("processors unquarantine", ".processors:Unquarantine", "lift the quarantine of a processor"),
        ("drain", ".sessions:Drain", "move the sessions of a server to other servers"),
    ),
    "Access and signatures": (
        ("token", ".token:Token", "create a token for a caller"),
        ("payload", "", "sign payloads, and show what they would do"),
        ("payload keygen", ".payload:Keygen", "create a key pair for signing payloads"),
        ("payload sign", ".payload:Sign", "sign a payload"),
        ("payload inspect", ".payload:Inspect", "show what a payload would do, without running it"),
    ),
    "Tools": (
        ("play", "logitport_play.command:Play", "show in the browser what a chain of processors does"),
        ("check", ".check:Check", "search for defects of processors"),
        ("replay", ".replay:ReplayRecording", "compare another version of a processor with a recorded one"),
        ("doctor", ".doctor:Doctor", "show what this machine runs: sandbox layers, which it tests, and ops"),
    ),
}


def _print_versions(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        versions = dict.fromkeys(("logitport", "torch", "grpcio", "protobuf"), "none")
        for name in versions:
            with suppress(importlib.metadata.PackageNotFoundError):  # torch is optional
                versions[name] = importlib.metadata.version(name)
        versions |= {"python": platform.python_version(), "core": _import("logitport.core.compiled").NAME}
        for name, version in versions.items():
            click.echo(f"{name:<10} {version}")
        click.echo(f"platform   {platform.platform()}")
        context.exit()


def _root() -> CommandGroup:
    root = CommandGroup(
        "logitport", "A logit-processor service. `logitport COMMAND --help` shows the options of a command."
    )
    for heading, rows in _TABLE.items():
        for words, path, text in rows:
            name = words.split()[-1]
            command = Command(name, path, text) if path else CommandGroup(name, f"{text[0].upper()}{text[1:]}.")
            group = root.commands.get(words.partition(" ")[0])
            if isinstance(group, CommandGroup):
                group.add(command, text, "Commands")
            else:
                root.add(command, text, heading)
    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_versions,
        help="Print versions and exit.",
    )(root)


ROOT = _root()
COMMANDS = ROOT.commands


def run(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name (default: the process's arguments).

    An invalid option ends the process with status 2 and one line for each option.
    """
    if _COMPLETE in os.environ:
        sys.exit(shell_complete(ROOT, {}, "logitport", _COMPLETE, os.environ[_COMPLETE]))
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Not click's `main`: it would end the process with status 1 where SIGINT or SIGPIPE shall end it.
        with ROOT.make_context("logitport", arguments or ["--help"]) as context:
            ROOT.invoke(context)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        _end(error)


def _end(error: click.ClickException) -> NoReturn:
    if not isinstance(error, click.UsageError):
        sys.exit(f"logitport: {error.format_message()}")
    for line in _message(error).splitlines():
        print(f"logitport: {line}", file=sys.stderr)  # noqa: T201
    if error.ctx is not None:
        print(f"Try: {error.ctx.command_path} --help", file=sys.stderr)  # noqa: T201
    sys.exit(error.exit_code)


def _message(error: click.UsageError) -> str:
    """Return the message, with the one word that was probably meant: click proposes up to three."""
    if not isinstance(error, click.NoSuchOption | click.NoSuchCommand):
        return error.format_message()
    near = error.possibilities or []
    if isinstance(error, click.NoSuchOption) and error.option_name in _LIKE_LISTEN and error.ctx is not None:
        near = ["--listen"] if error.ctx.info_name == "serve" else near
    return f"{error.message} Did you mean {near[0]!r}?" if near else error.message


def _import(name: str) -> Any:
    """Import a module. A missing dependency, and a wrong variable that the SDK reads then, are errors of one line."""
    try:
        return importlib.import_module(name, __package__)
    except ModuleNotFoundError as error:
        from logitport.system.installation import how_to_install

        text = f"{error.name} is not installed; install it {how_to_install('server')}"
        raise click.ClickException(text) from None
    except ValueError as error:  # InvalidArgument, which cannot be imported then
        raise click.UsageError(str(error)) from None
