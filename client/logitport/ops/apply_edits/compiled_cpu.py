"""The CPU implementation of the compiled core: applies all edits of one row, then those of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.compiled import core
from logitport.ops.apply_edits.cpu import open_memory

if TYPE_CHECKING:
    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> bool:
    """Apply edits, as `logitport.ops.apply_edits`, to a CPU tensor or a numpy array.

    Returns:
        False, and has changed nothing, if it cannot: there is no core, rows are not in ascending order, an id is not in
        range, elements share memory, or a biased value is a NaN of bfloat16.
    """
    if core is None or not len(edits):
        return core is not None
    columns = edits.rows, edits.kinds, edits.offsets, edits.ids, edits.values
    if core.apply_edits(*columns, logits, is_bf16=False):
        return True
    # Memory that the core does not find itself: of bfloat16 in numpy, and of tensors of an earlier torch.
    matrix, _ = open_memory(logits)
    if matrix.dtype.name == "bfloat16":
        matrix = matrix.view(np.int16)
    return core.apply_edits(*columns, matrix, is_bf16=matrix.dtype == np.int16)
