"""The reference implementation: applies one edit after the other, and is readable rather than fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import EditKind, unpack_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply edits, as `logitport.ops.apply_edits`, to a CPU tensor or a numpy array."""
    biases: dict[tuple[int, int], float] = {}
    for edit in range(len(edits)):
        row = int(edits.rows[edit])
        span = slice(edits.offsets[edit], edits.offsets[edit + 1])
        ids, kind = edits.ids[span], edits.kinds[edit]
        if kind == EditKind.BIAS:
            for token_id, value in zip(ids.tolist(), edits.values[span].tolist(), strict=True):
                biases[row, token_id] = biases.get((row, token_id), 0.0) + value
        else:
            _write(logits[row], kind, ids)
    for (row, token_id), value in biases.items():
        _add(logits[row], token_id, value)


def _write(row: Any, kind: int, ids: NDArray[np.int32]) -> None:
    if kind == EditKind.FORCE:
        row[:] = -float("inf")
        row[ids] = 0.0
        return
    denied = np.zeros(len(row), np.bool_)
    if kind == EditKind.DENY:
        denied[ids] = True
    elif kind == EditKind.ALLOW:
        denied[:] = True
        denied[ids] = False
    else:
        denied[:] = True
        covered = min(len(row), 32 * len(ids))
        denied[:covered] = ~unpack_bits(ids, covered)
    row[denied] = -float("inf")


def _add(row: Any, token_id: int, value: float) -> None:
    limit = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        total = np.float32(float(row[token_id])) + np.float32(min(max(value, -limit), limit))
        row[token_id] = total.item() if type(row).__module__ == "torch" else total
