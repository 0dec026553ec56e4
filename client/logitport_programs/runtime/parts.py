"""Parts of the selected rows. One runs at a time.

Irregular rows are divided so that a program runs in place, without a copy of the rows there and back. Many rows are
divided so that intermediate values stay in the caches, and few pages of memory are new at the first run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# On a CPU an operator takes about 10 us besides its work, and a byte that is copied there and back 0.2 ns.
_BYTES_PER_OPERATOR = 50_000
# Of the intermediate values of a part. For 64 rows of 151,936 logits on two cores of an AMD EPYC with other work, the
# fastest of 25 runs took 9.1 ms for min-p with all rows and 9.3 to 9.4 ms with 4 to 16 rows a part; for an entropy gate
# 14.2 ms, and 12.1 to 13.0 ms. With 2 rows a part they took 10.2 and 12.5 ms.
_PART_BYTES = 8 << 20


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


def divided(parts: Sequence[tuple[int, int]], row_bytes: int) -> list[tuple[int, int]]:
    """Divide parts if their intermediate values, of so many bytes for each row, would be too large for the caches."""
    most = max(1, _PART_BYTES // max(1, row_bytes))
    found: list[tuple[int, int]] = []
    for begin, end in parts:
        count = -(-(end - begin) // most)
        size = -(-(end - begin) // max(1, count))
        found += [(at, min(at + size, end)) for at in range(begin, end, max(1, size))]
    return found
