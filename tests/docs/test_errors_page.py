"""docs/errors.md draws the tree of errors.py, has a section for each class, and its table of statuses."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

from logitport import InvalidArgument, errors
from logitport.errors import LogitportError
from logitport.integrations.common.statuses import status_of
from logitport_proto import common_pb2
from logitport_server.cli.root import COMMANDS
from tests.docs.pages import blocks, codes, read, section

PAGE = read("docs/errors.md")
_BRANCH = re.compile(r"^ *((?:[│ ]   )*(?:├── |└── )?)([A-Z]\w+(?: \(\w+\))?)", re.MULTILINE)


def tree(text: str) -> list[tuple[int, str]]:
    """The classes of a drawing, each with its depth."""
    return [(len(indent) // 4, name) for indent, name in _BRANCH.findall(text)]


def test_the_tree_is_that_of_the_code() -> None:
    drawing = "\n".join(line.removeprefix("    ") for line in (errors.__doc__ or "").splitlines() if line[:4] == "    ")
    assert tree(blocks(PAGE, "text")[0]) == tree(drawing)


def test_each_class_has_a_section_with_advice() -> None:
    parts = re.split(r"^### ", section(PAGE, "Each error"), flags=re.MULTILINE)[1:]
    titles = [part.partition("\n")[0] for part in parts]
    assert titles == [name.partition(" ")[0] for _, name in tree(blocks(PAGE, "text")[0])]
    assert all("\n**Do:** " in part for part in parts)


def test_each_code_is_in_the_section_of_its_class() -> None:
    parts = {part.partition("\n")[0]: part for part in section(PAGE, "Each error").split("### ")[1:]}
    for error in {error for _, error, _ in errors._TABLE}:
        own = {_name(code) for code, other, _ in errors._TABLE if other is error}
        if len(own) > 1:
            assert own - {"INTERNAL"} <= set(re.findall(r"`([A-Z_]+)`", parts[error.__name__])), error


def test_the_statuses() -> None:
    expected = [
        [error.__name__, _name(code), status, str(int(status_of(error, code)))] for code, error, status in errors._TABLE
    ]
    unavailable = errors.ServerUnavailable
    expected.append([unavailable.__name__, "none", "", str(int(status_of(unavailable, 0)))])
    assert codes(section(PAGE, "Codes and statuses")) == expected


def test_the_example_catches_the_error() -> None:
    (example,) = blocks(PAGE)
    with redirect_stdout(io.StringIO()) as printed:
        exec(example, {})
    assert "ngram_size" in printed.getvalue()
    assert InvalidArgument.__name__ not in printed.getvalue()  # it was not the last branch


def test_the_attributes_are_those_of_an_error() -> None:
    named = {row[0] for row in codes(PAGE[PAGE.index("| attribute ") :])}
    assert named == {name for name in vars(LogitportError("x")) if not name.startswith("_")} | {"code"}


def test_the_commands_exist() -> None:
    named = re.findall(r"`logitport (\w+) (\w+)", PAGE)
    assert named
    for group, command in named:
        assert command in COMMANDS[group].commands  # type: ignore[attr-defined] # a group


def _name(code: int) -> str:
    return common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")  # type: ignore[arg-type]
