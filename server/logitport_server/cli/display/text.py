"""Texts of others, such as names of engines, which may have escape sequences or any length."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

_ELLIPSIS = "…"
# Characters for each cell of the screen: combining characters take no cell, but their number must be limited, too.
_MAX_CHARACTERS_PER_CELL = 2


def escape(text: str) -> str:
    r"""Write characters that cannot be printed as in Python, such as \x1b; spaces that are not " ", too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_lines(text: str) -> str:
    """Escape as `escape`, but keep the ends of lines."""
    return "\n".join(map(escape, text.split("\n")))


def fit(text: str, max_cells: int) -> str:
    """Escape the text, and shorten it to this width on the screen."""
    limit = max_cells * _MAX_CHARACTERS_PER_CELL
    shown = escape(text[: limit + 1])
    if len(shown) <= limit and cell_len(shown) <= max_cells:
        return shown
    return set_cell_size(shown[:limit], max_cells - 1).rstrip() + _ELLIPSIS
