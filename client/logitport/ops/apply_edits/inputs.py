"""What the implementations share: checks of the logits, and the sums of the BIAS edits of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.core.edits import EditKind
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from logitport.core.edits import Edits

_FLOAT32 = np.finfo(np.float32)


def check_tensor(logits: torch.Tensor) -> None:
    """Raise InvalidArgument unless the tensor is float32, float16 or bfloat16."""
    import torch

    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidArgument(f"logits are a tensor of {logits.dtype}; pass one of float32, float16 or bfloat16")


def check_array(logits: NDArray[Any]) -> NDArray[Any]:
    """Return the array. Raises InvalidArgument unless it is writable float32, float16 or ml_dtypes' bfloat16."""
    if logits.dtype.name not in ("float32", "float16", "bfloat16"):
        raise InvalidArgument(f"logits are an array of {logits.dtype}; pass one of float32, float16 or bfloat16")
    if not logits.flags.writeable:
        raise InvalidArgument("logits are a read-only array; pass a writable one, such as a copy")
    return logits


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
        cells, cell_of_value = np.unique(cells, return_inverse=True)
        sums = np.bincount(cell_of_value, weights=values, minlength=len(cells))
        values = sums.clip(_FLOAT32.min, _FLOAT32.max).astype(np.float32)
    return Biases(cells >> 32, cells & 0xFFFFFFFF, values)
