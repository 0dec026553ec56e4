"""Tables: alignment, and colors."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.cli import display
from logitport_server.cli.display import Column, fields, lines_of, number

if TYPE_CHECKING:
    from collections.abc import Iterable


def plain(lines: Iterable[Any]) -> list[str]:
    return [line.plain for line in lines]


def test_columns_are_aligned() -> None:
    rows = [("漢字", 5, "serving"), ("a", 1234, "x\x1b")]
    assert plain(lines_of([Column("NAME"), number("STEPS"), Column("STATE")], rows)) == [
        "NAME  STEPS  STATE",
        "漢字      5  serving",
        r"a      1234  x\x1b",
    ]


def test_a_table_without_rows_has_its_headings() -> None:
    assert plain(lines_of([Column("NAME"), Column("AGE")], [])) == ["NAME  AGE"]


def test_fields_are_aligned() -> None:
    assert plain(fields([("a", "1\n2"), ("long", "3")])) == [r"a     1\n2", "long  3"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "has_color"), [("", True), ("1", False)])
def test_colors_obey_no_color(monkeypatch: pytest.MonkeyPatch, no_color: str, has_color: bool) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    # Names are never colored, whatever they are.
    display.show(lines_of([Column("NAME"), Column("STATE")], [("[red]unreachable[/]", "unreachable")]))
    printed = terminal.getvalue()
    assert ("\x1b[31m" in printed) == has_color
    assert "[red]unreachable[/]" in printed
    assert printed.count("\x1b[31m") <= 1


def test_lines_are_neither_wrapped_nor_colored_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    display.show(lines_of([Column("A", max_cells=100), Column("STATE")], [("x" * 100, "serving")]))
    assert capsys.readouterr().out.splitlines()[1] == "x" * 100 + "  serving"
