"""Parts of irregular rows in which a program runs in place, without a copy of the rows there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# On a CPU an operator takes about 10 us besides its work, and a byte that is copied there and back 0.2 ns.
_BYTES_PER_OPERATOR = 50_000


def even_parts(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Divide ascending rows into parts of evenly spaced ones, from the first row on: begin and end of each part."""
    parts: list[tuple[int, int]] = []
    begin = 0
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and rows[end] - rows[end - 1] == rows[begin + 1] - rows[begin]:
            end += 1
        parts.append((begin, end))
        begin = end
    return parts


def are_worthwhile(parts: Sequence[object], operators: int, copied_bytes: int) -> bool:
    """Whether running all operators for each part on a CPU takes less time than copying the rows there and back."""
    return len(parts) * operators * _BYTES_PER_OPERATOR < copied_bytes
