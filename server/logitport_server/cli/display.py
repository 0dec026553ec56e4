"""Tables as kubectl prints them, of texts that are not trusted; and quantities, short enough for a column."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

NOTHING = "-"
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_GAP = "  "
_MAX_CELLS = 40
_ELLIPSIS = "…"
# Characters for each cell of the screen: combining characters take no cell, but their number must be limited, too.
_MAX_CHARACTERS_PER_CELL = 2
# The colors of states.
_STYLES = {
    "serving": "green",
    "busy": "green",
    "draining": "yellow",
    "moving": "yellow",
    "starting": "yellow",
    "quarantined": "red",
    "unreachable": "red",
    "failed": "red",
}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: in capital letters.
        value: what the cell shows of a row's object: the name of an attribute, with dots, or a function of the object.
        max_cells: a longer text is shortened to this width.
        right: whether the cells are aligned to the right, for numbers.
    """

    heading: str
    value: Callable[[Any], object] | str = ""
    max_cells: int = _MAX_CELLS
    right: bool = False


def number(heading: str, value: Callable[[Any], object] | str = "") -> Column:
    """Make a column of numbers."""
    return Column(heading, value, right=True)


def row_of(columns: Sequence[Column], item: object) -> list[object]:
    """Return the cells of an object; "-" for an empty text and for None."""
    getters = [attrgetter(column.value) if isinstance(column.value, str) else column.value for column in columns]
    return [NOTHING if shown in ("", None) else shown for shown in (get(item) for get in getters)]


def lines_of(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Iterator[Text]:
    """Yield the lines of a table, the first one with the headings."""
    shown = [[fit(str(cell), column.max_cells) for column, cell in zip(columns, row, strict=True)] for row in rows]
    headings = [column.heading for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(headings, *shown, strict=True)]
    for index, row in enumerate([headings, *shown]):
        line = Text(no_wrap=True, overflow="ellipsis")
        for at, (column, cell, width) in enumerate(zip(columns, row, widths, strict=True)):
            padding = " " * (width - cell_len(cell))
            is_last = at == len(row) - 1
            line.append(padding if column.right else "")
            line.append(cell, style="bold" if index == 0 else _style(column.heading, cell))
            line.append("" if is_last else _GAP if column.right else padding + _GAP)
        yield line


def fields(pairs: Iterable[tuple[str, str]], max_cells: int = 2000) -> Iterator[Text]:
    """Yield a line for each (name, value), with aligned values."""
    pairs = list(pairs)
    width = max((cell_len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(name, style="bold").append(" " * (width - cell_len(name)) + _GAP)
        shown = fit(value, max_cells)
        yield line.append(shown, style=_style(name, shown))


def fit(text: str, max_cells: int) -> str:
    """Escape the text, and shorten it to this width on the screen."""
    limit = max_cells * _MAX_CHARACTERS_PER_CELL
    shown = escape(text[: limit + 1])
    if len(shown) <= limit and cell_len(shown) <= max_cells:
        return shown
    return set_cell_size(shown[:limit], max_cells - 1).rstrip() + _ELLIPSIS


def escape(text: str) -> str:
    r"""Write characters that cannot be printed as in Python, such as \x1b; spaces that are not " ", too."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _style(heading: str, cell: str) -> str:
    return _STYLES.get(cell, "") if heading.upper() == "STATE" else ""


def show(lines: Iterable[Text]) -> None:
    """Print lines to stdout, in their full length. Colors are off for a file or a pipe, and with NO_COLOR."""
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def age(seconds: float | None) -> str:
    """Write a time span with its two largest units, for example "2h13m"; below a second in milliseconds."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def latency(seconds: float) -> str:
    """Write a time below some seconds with three digits, for example "1.25ms"."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g}{unit}"
    return f"{seconds:.3g}s"


def size(num_bytes: int) -> str:
    """Write a size with a binary unit, for example "81.5MiB"."""
    value = float(num_bytes)
    for unit in _SIZES[:-1]:
        if value < 1023.5:
            return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.4g}{_SIZES[-1]}"


def rate(per_second: float | None) -> str:
    """Write a number per second with one decimal; large ones without."""
    if per_second is None:
        return NOTHING
    return f"{per_second:.1f}" if per_second < 9999.95 else f"{per_second:.0f}"
