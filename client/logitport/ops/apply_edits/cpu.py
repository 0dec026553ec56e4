"""The CPU implementations on the logits' own memory: the compiled core, or numpy for what the core cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.compiled import core
from logitport.core.edits import EditKind
from logitport.ops.apply_edits.inputs import check_array, check_tensor, sum_biases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logitport.core.edits import Edits

_MINUS_INF_BFLOAT16 = -0x80  # 0xFF80 as int16

# For each value of a bitmask byte, the masks of its eight elements: all ones where the bit (LSB first) is 0.
# The key is the size of an element in bytes.
_DENIED_32 = -np.unpackbits(~np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.int32)
_DENIED: dict[int, NDArray[Any]] = {4: _DENIED_32, 2: _DENIED_32.astype(np.int16)}


def apply_edits_compiled(edits: Edits, logits: Any) -> bool:
    """Apply edits with the compiled core: row by row.

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


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply all edits of one kind at once, with numpy, to a CPU tensor or a numpy array."""
    kinds = edits.kinds.tobytes()
    if not kinds:
        return
    matrix, minus_inf = open_memory(logits)
    if EditKind.FORCE in kinds:
        for row, ids in _each(edits, EditKind.FORCE):
            _fill(logits, row)
            matrix[row, ids] = 0
    if EditKind.BIAS in kinds:
        biases = sum_biases(edits)
        where = biases.rows, biases.ids
        matrix[where] = _add(matrix[where], biases.sums)
    if EditKind.ALLOW in kinds:
        for row, ids in _each(edits, EditKind.ALLOW):
            kept = matrix[row, ids]
            _fill(logits, row)
            matrix[row, ids] = kept
    if EditKind.BITMASK in kinds:
        for row, words in _each(edits, EditKind.BITMASK):
            _mask(matrix[row], words, minus_inf)
    if EditKind.DENY in kinds:
        _deny(edits, kinds, matrix, minus_inf)


def open_memory(logits: Any) -> tuple[NDArray[Any], float]:
    """Return the logits' memory as an array, and -inf as stored there. numpy lacks bfloat16, which becomes int16."""
    if isinstance(logits, np.ndarray):
        return check_array(logits), -np.inf
    import torch

    if logits.requires_grad:
        logits = logits.detach()  # torch returns no array of such a tensor, even under no_grad
    if logits.dtype == torch.bfloat16:
        return logits.view(torch.int16).numpy(), _MINUS_INF_BFLOAT16
    check_tensor(logits)
    return logits.numpy(), -np.inf


def _fill(logits: Any, row: int) -> None:
    if isinstance(logits, np.ndarray):
        logits[row].fill(-np.inf)
    else:
        logits.detach()[row].fill_(-np.inf)  # torch fills with all threads, numpy with one


def _each(edits: Edits, kind: EditKind) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield the row and the ids (or words) of each edit of one kind."""
    for edit in np.flatnonzero(edits.kinds == kind):
        yield int(edits.rows[edit]), edits.ids[edits.offsets[edit] : edits.offsets[edit + 1]]


def _add(values: NDArray[Any], sums: NDArray[np.float32]) -> NDArray[Any]:
    if values.dtype == np.int16:
        import torch

        wide = torch.from_numpy(values).view(torch.bfloat16).float() + torch.from_numpy(sums)
        bits: NDArray[np.int16] = wide.bfloat16().view(torch.int16).numpy()
        return bits
    with np.errstate(over="ignore", invalid="ignore"):
        return (values.astype(np.float32) + sums).astype(values.dtype)


def _mask(row: NDArray[Any], words: NDArray[np.int32], minus_inf: float) -> None:
    """Write -inf where a bit is 0. Works on the elements' bits: a branch for each element is three times as slow."""
    bits = row.view(f"i{row.itemsize}")
    pattern = np.array(minus_inf, row.dtype).view(bits.dtype)
    mask_bytes = words.astype("<i4", copy=False).view(np.uint8)
    denied = _DENIED[row.itemsize].take(mask_bytes, axis=0).reshape(-1)[: len(bits)]
    row[len(denied) :] = minus_inf
    bits = bits[: len(denied)]
    bits |= denied
    denied &= ~pattern
    bits ^= denied


def _deny(edits: Edits, kinds: bytes, matrix: NDArray[Any], minus_inf: float) -> None:
    rows, counts, ids = edits.rows, edits.counts, edits.ids
    if kinds.count(EditKind.DENY) < len(kinds):
        chosen = edits.kinds == EditKind.DENY
        rows, counts, ids = rows[chosen], counts[chosen], ids[chosen.repeat(counts)]
    if matrix.flags.c_contiguous:  # one flat index for each element is twice as fast as two
        cells = (rows.astype(np.int64) * matrix.shape[1]).repeat(counts)
        cells += ids
        matrix.reshape(-1)[cells] = minus_inf
    else:
        matrix[rows.repeat(counts), ids] = minus_inf
