"""Random edits for the tests of the core."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from logitport.core.edits import EditKind, Edits, RowEdits, pack_bits


@st.composite
def row_edits(draw: st.DrawFn, width: int, largest: float = 60000, max_ids: int = 12) -> RowEdits:
    """Edits of one row, of all kinds, each with at most `max_ids` ids."""
    ids = st.lists(st.integers(0, width - 1), max_size=max_ids)
    edits = RowEdits()
    for kind in draw(st.lists(st.sampled_from(EditKind), max_size=4)):
        if kind is EditKind.DENY:
            edits.deny(draw(ids))
        elif kind is EditKind.ALLOW:
            edits.allow(draw(ids))
        elif kind is EditKind.FORCE:
            edits.force(draw(st.integers(0, width - 1)))
        elif kind is EditKind.BIAS:
            biased = draw(ids)
            value = st.floats(-largest, largest, width=32)
            edits.bias(biased, draw(st.lists(value, min_size=len(biased), max_size=len(biased))))
        else:
            edits.bitmask(pack_bits(np.array(draw(st.lists(st.booleans(), min_size=width, max_size=width)))))
    return edits


@st.composite
def batches(draw: st.DrawFn, ascending: bool = False, largest: float = 60000) -> tuple[Edits, int, int]:
    """Edits, the number of rows, and the width of the logits. The rows are in any order."""
    width, num_rows = draw(st.integers(1, 140)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.integers(0, num_rows - 1), unique=True))
    if ascending:
        rows.sort()
    return Edits.pack([(row, draw(row_edits(width, largest))) for row in rows], width), num_rows, width


# A change of one element of a column: column, place, element; and of a column's length in bytes.
CHANGED_ELEMENT = st.tuples(
    st.integers(0, 4),
    st.integers(0, 20),
    st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 6, 31, 139, 140, 255, 2**31 - 1, float("nan"), float("inf")]),
)
CHANGED_LENGTH = st.tuples(st.integers(0, 4), st.integers(-9, 9))


def change(columns: list[bytes], elements: list[Any], lengths: list[tuple[int, int]]) -> list[bytes]:
    """Apply changes to columns, in the order of `EditColumns`."""
    dtypes = ["<i4", "u1", "<i4", "<i4", "<f4"]
    arrays = [np.frombuffer(column, dtype).copy() for column, dtype in zip(columns, dtypes, strict=True)]
    for column, place, element in elements:
        if place < len(arrays[column]) and (column == 4 or np.isfinite(element)):
            arrays[column][place] = int(element) & 255 if column == 1 else element
    changed = [array.tobytes() for array in arrays]
    for column, length in lengths:
        changed[column] = changed[column] + bytes(length) if length > 0 else changed[column][: length or None]
    return changed
