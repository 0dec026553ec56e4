"""argparse with short usage lines, text that fills the terminal, and proposals for misspelt options."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

WRONG_USAGE = 2
EXIT_STATUS = (
    "Exit status: 0 if the command has succeeded, 1 if it has failed, 2 if its options, its variables or its "
    "configuration file are wrong. A shell shows 130 after SIGINT and 143 after SIGTERM."
)


class ParserError(Exception):
    """The arguments of a command are wrong.

    Attributes:
        command: words of the command.
    """

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command

    def exit(self) -> NoReturn:
        """Print the message, and end the process."""
        print(f"logitport: {self}\nTry: {self.command} --help", file=sys.stderr)  # noqa: T201
        sys.exit(WRONG_USAGE)


# Options of other servers, and the option with that meaning: the words are not similar.
_SAME_MEANING = {"--port": "--listen", "--host": "--listen", "--bind": "--listen", "--address": "--listen"}


def proposal(word: str, known: Collection[str]) -> str:
    """Return "; did you mean X?" if one of the known words has this meaning or is similar, otherwise ""."""
    near = [option for option in [_SAME_MEANING.get(word)] if option in known] or difflib.get_close_matches(
        word, known, 1
    )
    return f"; did you mean {near[0]}?" if near else ""


class HelpFormatter(argparse.HelpFormatter):
    """Fills the paragraphs of descriptions and epilogs to the width of the terminal."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
        filled = (textwrap.fill(each, width, initial_indent=indent, break_on_hyphens=False) for each in paragraphs)
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """The parser of a command, or of its subcommands, which have parsers of this class, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, "epilog": EXIT_STATUS, **settings})
        self._positionals.title = "arguments"
        self._headings: dict[str, argparse._ActionsContainer] = {self._optionals.title or "": self}

    def under(self, heading: str) -> argparse._ActionsContainer:
        """Return the group of options with this heading."""
        if heading not in self._headings:
            self._headings[heading] = self.add_argument_group(heading)
        return self._headings[heading]

    def parse_known_args(  # type: ignore[override] # the overloads of typeshed say the same
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        raise ParserError(message.removeprefix("argument "), self.prog)

    def format_help(self) -> str:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                action.metavar = "COMMAND"
        # argparse would list every option.
        shown = [action for action in self._actions if action.required or not action.option_strings]
        shown.sort(key=lambda action: not action.option_strings)
        self.usage = " ".join(["%(prog)s [OPTION ...]", *map(_usage, shown)])
        return super().format_help()

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        option = word.partition("=")[0]
        return f"unknown option {option}{proposal(option, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # pydantic checks the values of options.
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise argparse.ArgumentError(None, f"unknown command {value!r}{proposal(str(value), [*action.choices])}")


def _usage(action: argparse.Action) -> str:
    metavar = str(action.metavar or action.dest)
    if action.option_strings:
        return f"{action.option_strings[-1]} {action.dest.upper() if action.choices else metavar}"
    return {"*": f"[{metavar} ...]", "+": f"{metavar} ...", "?": f"[{metavar}]", "A...": f"{metavar} ..."}.get(
        str(action.nargs), metavar
    )
