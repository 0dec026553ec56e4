"""Vectorised PyTorch for any device. Every kernel takes only tensors, so that inductor can compile it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport.core.edits import EditKind
from logitport.ops.apply_edits.inputs import check_array, check_tensor, sum_biases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any, compiled: Callable[[Any], Any] = lambda kernel: kernel) -> None:
    """Apply edits, as `logitport.ops.apply_edits`. `compiled` returns the function to run for each kernel."""
    tensor = logits.detach() if isinstance(logits, torch.Tensor) else _as_tensor(check_array(logits))
    check_tensor(tensor)

    def run(kernel: Any, *columns: NDArray[Any]) -> None:
        on_device = [torch.from_numpy(column).to(tensor.device, non_blocking=True) for column in columns]
        compiled(kernel)(tensor, *on_device)

    kinds = edits.kinds.tobytes()
    if EditKind.FORCE in kinds:
        run(force, *_cells(edits, edits.kinds == EditKind.FORCE))
    if EditKind.BIAS in kinds:
        run(bias, *sum_biases(edits))
    for chosen in _once_a_row(edits, EditKind.ALLOW):
        run(allow, edits.rows[chosen].astype(np.int64), *_cells(edits, chosen))
    for chosen in _once_a_row(edits, EditKind.BITMASK):
        words = edits.ids[chosen.repeat(edits.counts)].reshape(np.count_nonzero(chosen), -1)
        run(bitmask, edits.rows[chosen].astype(np.int64), words)
    if EditKind.DENY in kinds:
        run(deny, *_cells(edits, edits.kinds == EditKind.DENY))


def force(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> None:
    """Fill `rows`, int64[n], with -inf, and write 0.0 at their `ids`, int64[n]."""
    logits[rows] = -float("inf")
    logits[rows, ids] = 0.0


def bias(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, sums: torch.Tensor) -> None:
    """Add `sums`, float32[n], at (rows, ids), int64[n] each. All pairs differ."""
    logits[rows, ids] = (logits[rows, ids].float() + sums).to(logits.dtype)


def allow(logits: torch.Tensor, edited: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> None:
    """Fill the rows `edited`, int64[edits], with -inf, except at (rows, ids), int64[n] each."""
    kept = logits[rows, ids]
    logits[edited] = -float("inf")
    logits[rows, ids] = kept


def bitmask(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """Write -inf in `rows`, int64[n], where a bit of `words`, int32[n, words], is 0, and at ids past the words."""
    bits = torch.arange(32, device=words.device, dtype=torch.int32)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1).bool()[:, : logits.shape[1]]
    covered = allowed.shape[1]
    logits[rows, :covered] = logits[rows, :covered].masked_fill(~allowed, -float("inf"))
    logits[rows, covered:] = -float("inf")


def deny(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> None:
    """Write -inf at (rows, ids), int64[n] each."""
    logits[rows, ids] = -float("inf")


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
        places = np.flatnonzero(left)
        chosen = np.zeros_like(left)
        chosen[places[np.unique(edits.rows[places], return_index=True)[1]]] = True
        yield chosen
        left &= ~chosen
