"""The CPU implementation of the compiled core: applies all edits of one row, then those of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.compiled import core
from logitport.ops.apply_edits.cpu import open_memory

if TYPE_CHECKING:
    from logitport.core.edits import Edits

# By dtype of the memory, which for bfloat16 is int16. An array in the other byte order has another dtype.
_DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.float16): "FP16", np.dtype(np.int16): "BF16"}


def apply_edits(edits: Edits, logits: Any) -> bool:
    """Apply edits, as `logitport.ops.apply_edits`, to a CPU tensor or a numpy array.

    Returns:
        False, and has changed nothing, if it cannot: there is no core, rows are not in ascending order, an id is not in
        range, elements share memory, or a biased value is a NaN of bfloat16.
    """
    if core is None or not len(edits):
        return core is not None
    matrix, _ = open_memory(logits)
    if matrix.dtype.name == "bfloat16":  # of ml_dtypes
        matrix = matrix.view(np.int16)
    datatype = _DATATYPES.get(matrix.dtype)
    return datatype is not None and core.apply_edits(
        edits.rows, edits.kinds, edits.offsets, edits.ids, edits.values, matrix, datatype
    )
