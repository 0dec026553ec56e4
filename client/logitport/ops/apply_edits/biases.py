"""The sums of all BIAS edits of a step, one for each biased id of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport.core.edits import EditKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.edits import Edits

_FLOAT32 = np.finfo(np.float32)


class Biases(NamedTuple):
    """Columns of sums, ordered by row and then by id; no id occurs twice in a row.

    Attributes:
        rows: int64[n].
        ids: int64[n].
        sums: float32[n], finite.
    """

    rows: NDArray[np.int64]
    ids: NDArray[np.int64]
    sums: NDArray[np.float32]


def sum_biases(edits: Edits) -> Biases:
    """Sum the BIAS edits of each id of a row in float64, and clip the sums to float32's finite range."""
    chosen = edits.kinds == EditKind.BIAS
    if not chosen.any():
        return Biases(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    is_bias = np.repeat(chosen, edits.counts)
    cells = np.repeat(edits.rows[chosen].astype(np.int64) << 32, edits.counts[chosen]) | edits.ids[is_bias]
    values = edits.values[is_bias]
    if not (cells[:-1] < cells[1:]).all():
        cells, places = np.unique(cells, return_inverse=True)
        sums = np.bincount(places, weights=values, minlength=len(cells))
        values = sums.clip(_FLOAT32.min, _FLOAT32.max).astype(np.float32)
    return Biases(cells >> 32, cells & 0xFFFFFFFF, values)
