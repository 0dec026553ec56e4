"""Vectorised PyTorch for any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport.core.edits import EditKind
from logitport.ops.apply_edits.inputs import check_array, check_tensor, sum_biases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply edits, as `logitport.ops.apply_edits`."""
    tensor = logits.detach() if isinstance(logits, torch.Tensor) else _as_tensor(check_array(logits))
    check_tensor(tensor)

    def sent(*columns: NDArray[Any]) -> list[torch.Tensor]:
        return [torch.from_numpy(column).to(tensor.device, non_blocking=True) for column in columns]

    kinds = edits.kinds.tobytes()
    if EditKind.FORCE in kinds:
        rows, ids = sent(*_cells(edits, edits.kinds == EditKind.FORCE))
        tensor[rows] = -float("inf")
        tensor[rows, ids] = 0.0
    if EditKind.BIAS in kinds:
        rows, ids, sums = sent(*sum_biases(edits))
        tensor[rows, ids] = (tensor[rows, ids].float() + sums).to(tensor.dtype)
    for chosen in _once_a_row(edits, EditKind.ALLOW):
        edited, rows, ids = sent(edits.rows[chosen].astype(np.int64), *_cells(edits, chosen))
        kept = tensor[rows, ids]
        tensor[edited] = -float("inf")
        tensor[rows, ids] = kept
    for chosen in _once_a_row(edits, EditKind.BITMASK):
        words = edits.ids[chosen.repeat(edits.counts)].reshape(np.count_nonzero(chosen), -1)
        _mask(tensor, *sent(edits.rows[chosen].astype(np.int64), words))
    if EditKind.DENY in kinds:
        rows, ids = sent(*_cells(edits, edits.kinds == EditKind.DENY))
        tensor[rows, ids] = -float("inf")


def _mask(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """Write -inf in `rows`, int64[n], where a bit of `words`, int32[n, words], is 0, and at ids past the words."""
    bits = torch.arange(32, device=words.device, dtype=torch.int32)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1).bool()[:, : logits.shape[1]]
    covered = allowed.shape[1]
    logits[rows, :covered] = logits[rows, :covered].masked_fill(~allowed, -float("inf"))
    logits[rows, covered:] = -float("inf")


def _as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor on the array's memory. torch does not support the bfloat16 dtype that ml_dtypes adds to numpy."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _cells(edits: Edits, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and the id of each element of the chosen edits."""
    rows = edits.rows[chosen].repeat(edits.counts[chosen])
    return rows.astype(np.int64), edits.ids[chosen.repeat(edits.counts)].astype(np.int64)


def _once_a_row(edits: Edits, kind: EditKind) -> Iterator[NDArray[np.bool_]]:
    """Yield selections of the edits of one kind, each with at most one edit of a row.

    Two edits of a row keep only the ids that both keep. One kernel call with both would not intersect them.
    """
    left = edits.kinds == kind
    while left.any():
        positions = np.flatnonzero(left)
        chosen = np.zeros_like(left)
        chosen[positions[np.unique(edits.rows[positions], return_index=True)[1]]] = True
        yield chosen
        left &= ~chosen
