"""Tables: alignment and colors; durations, sizes and rates; texts of others are escaped, and fit into their column."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from logitport_server.cli import display
from logitport_server.cli.display import Column, age, fields, fit, latency, lines_of, number, rate, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("vllm 0.33.0", "vllm 0.33.0"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\rc\td\x00\x7f", r"a\nb\rc\td\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),  # a control sequence in one character
        ("\u202eevil", r"\u202eevil"),  # writes from right to left
        ("a\u200bb\u00a0c", r"a\u200bb\xa0c"),
        ("\ud800", r"\ud800"),
        ("漢字é", "漢字é"),
    ],
)
def test_control_characters_are_escaped(text: str, escaped: str) -> None:
    assert fit(text, 100) == escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("exactly ten", "exactly t…"),
        ("exactly 10", "exactly 10"),
        ("漢字漢字漢", "漢字漢字漢"),
        ("漢字漢字漢字", "漢字漢字…"),
        ("\x1b" * 100, r"\x1b\x1b\…"),
    ],
)
def test_long_texts_are_shortened(text: str, shown: str) -> None:
    assert fit(text, 10) == shown


@given(st.text(max_size=300), st.integers(2, 40))
def test_any_text_fits_and_is_printable(text: str, width: int) -> None:
    shown = fit(text, width)
    assert shown.isprintable()
    assert cell_len(shown) <= width
    assert len(shown) <= 2 * width + 1


def test_many_combining_characters_do_not_pile_up() -> None:
    assert len(fit("e" + "\u0301" * 100_000, 10)) <= 21


AGES = [
    *((-1.0, "0ms"), (0.0, "0ms"), (0.0134, "13ms"), (1.9, "1s"), (59.9, "59s"), (60.0, "1m"), (3599.0, "59m59s")),
    *((3600.0, "1h"), (3605.0, "1h"), (8000.0, "2h13m"), (90_000.0, "1d1h"), (86_400.0 * 400, "400d")),
]
LATENCIES = [
    *((0.0, "0us"), (2.5e-5, "25us"), (0.0009996, "1ms"), (0.00125, "1.25ms"), (0.9996, "1s"), (2.5, "2.5s")),
]
SIZES = [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (190_000_000, "181MiB"), (1 << 40, "1TiB")]
RATES = [(0.0, "0.0"), (54.94, "54.9"), (9999.94, "9999.9"), (9999.99, "10000"), (123456.7, "123457")]


@pytest.mark.parametrize(("write", "written"), [(age, AGES), (latency, LATENCIES), (size, SIZES), (rate, RATES)])
def test_numbers_with_units(write: Callable[[Any], str], written: list[tuple[float, str]]) -> None:
    assert [(value, write(value)) for value, _ in written] == written
