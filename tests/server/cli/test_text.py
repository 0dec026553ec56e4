"""Texts of others are escaped, and fit into their column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from logitport_server.cli.display import fit


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
