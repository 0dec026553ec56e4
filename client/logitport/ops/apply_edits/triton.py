"""The GPU implementation: one copy of the edits to the device and one kernel launch, without synchronization."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"
# Triton has no types, and interprets annotations of a kernel itself.
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from logitport.core.edits import EditKind
from logitport.ops.apply_edits.inputs import check_tensor, sum_biases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.edits import Edits

BLOCK = 8192  # ids of a row that one program edits
CHUNK = 1024  # ids of an edit that a program loads at once
WARPS = 8

_ROW_COLUMNS = tl.constexpr(5)  # row, first edit, end of its edits, first bias, end of its biases
_EDIT_COLUMNS = tl.constexpr(3)  # kind, first id or word, end of them

_DENY = tl.constexpr(int(EditKind.DENY))
_ALLOW = tl.constexpr(int(EditKind.ALLOW))
_FORCE = tl.constexpr(int(EditKind.FORCE))
_BITMASK = tl.constexpr(int(EditKind.BITMASK))


class KernelInput(NamedTuple):
    """The kernel's input, on the GPU.

    Attributes:
        columns: int32[n], the sections of `plan_sections`, one after the other.
        rows: the number of edited rows.
        biases: the number of biased ids.
        allows: whether there is an ALLOW.
    """

    columns: torch.Tensor
    rows: int
    biases: int
    allows: bool


def apply_edits(edits: Edits, logits: torch.Tensor) -> None:
    """Apply edits, as `logitport.ops.apply_edits`, to a tensor on a GPU, or on a CPU under Triton's interpreter."""
    if not len(edits):
        return
    check_tensor(logits)
    launch(send(edits, logits.device), logits.detach())


def send(edits: Edits, device: torch.device) -> KernelInput:
    """Copy the edits, at least one, to the device of the logits. Does not wait for the copy."""
    starts = np.flatnonzero(np.diff(edits.rows, prepend=-1))
    sections = plan_sections(edits, starts)
    # Pinned memory makes the copy asynchronous; torch reuses the memory only after the copy is done.
    columns = torch.empty(sum(map(len, sections)), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(sections, out=columns.numpy())
    allows = EditKind.ALLOW in edits.kinds.tobytes()
    return KernelInput(columns.to(device, non_blocking=True), len(starts), len(sections[-1]), allows)


def launch(plan: KernelInput, logits: torch.Tensor) -> None:
    """Launch the kernel on logits, float[rows, vocab_size], that `check_tensor` accepts and that need no gradient."""
    # `kept` holds the values that an ALLOW keeps, each at its id's position in the plan.
    kept = torch.empty(len(plan.columns), dtype=logits.dtype, device=logits.device) if plan.allows else logits
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        edit_block[plan.rows, triton.cdiv(logits.shape[1], BLOCK)](
            logits,
            plan.columns,
            kept,
            logits.stride(0),
            logits.stride(1),
            logits.shape[1],
            plan.biases,
            BLOCK,
            CHUNK,
            num_warps=WARPS,
        )


def plan_sections(edits: Edits, starts: NDArray[np.intp]) -> tuple[NDArray[np.int32], ...]:
    """Return the kernel's input as consecutive int32 sections. Positions count from the start of the first section.

    Args:
        edits: the edits.
        starts: the first edit of each edited row, int[rows].

    Returns:
        `_ROW_COLUMNS` for each row, `_EDIT_COLUMNS` for each edit, all ids and words, the ids of all biases, and
        the bits of their float32 sums.
    """
    biases = sum_biases(edits)
    touched = edits.rows[starts]
    row_columns, edit_columns = _ROW_COLUMNS.value, _EDIT_COLUMNS.value
    edits_at = row_columns * len(starts)
    ids_at = edits_at + edit_columns * len(edits)
    biases_at = ids_at + len(edits.ids)
    rows = np.empty((len(starts), row_columns), np.int32)
    rows[:, 0] = touched
    rows[:, 1] = edits_at + edit_columns * starts
    rows[:-1, 2] = rows[1:, 1]
    rows[-1, 2] = ids_at
    rows[:, 3] = biases_at + np.searchsorted(biases.rows, touched, "left")
    rows[:, 4] = biases_at + np.searchsorted(biases.rows, touched, "right")
    kinds = np.empty((len(edits), edit_columns), np.int32)
    kinds[:, 0] = edits.kinds
    kinds[:, 1] = ids_at + edits.offsets[:-1]
    kinds[:, 2] = ids_at + edits.offsets[1:]
    return rows.reshape(-1), kinds.reshape(-1), edits.ids, biases.ids.astype(np.int32), biases.sums.view(np.int32)


@triton.jit(do_not_specialize=["num_biases"])
def edit_block(
    logits,
    plan,
    kept,
    row_stride,
    id_stride,
    width,
    num_biases,
    BLOCK: tl.constexpr,  # noqa: N803 - Triton's convention
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Apply all edits of one row to BLOCK of its ids, in order.

    A thread reads and writes elements that another thread wrote; a barrier separates every such pair.
    """
    entry = plan + _ROW_COLUMNS * tl.program_id(0)
    line = logits + tl.load(entry).to(tl.int64) * row_stride
    low = tl.program_id(1) * BLOCK
    block = low + tl.arange(0, BLOCK)
    inside = block < width
    for edit in range(tl.load(entry + 1), tl.load(entry + 2), _EDIT_COLUMNS):
        kind = tl.load(plan + edit)
        first = tl.load(plan + edit + 1)
        end = tl.load(plan + edit + 2)
        if kind == _FORCE:
            tl.store(line + block * id_stride, float("-inf"), mask=inside)
            tl.debug_barrier()
            forced = tl.load(plan + first)
            tl.store(line + forced * id_stride, 0.0, mask=(forced >= low) & (forced < low + BLOCK))
        elif kind == _ALLOW:
            for start in range(first, end, CHUNK):
                positions, ids, mine = _chunk(plan, start, end, low, BLOCK, CHUNK)
                tl.store(kept + positions, tl.load(line + ids * id_stride, mask=mine), mask=mine)
            tl.debug_barrier()
            tl.store(line + block * id_stride, float("-inf"), mask=inside)
            tl.debug_barrier()
            for start in range(first, end, CHUNK):
                positions, ids, mine = _chunk(plan, start, end, low, BLOCK, CHUNK)
                tl.store(line + ids * id_stride, tl.load(kept + positions, mask=mine), mask=mine)
        elif kind == _BITMASK:
            positions = first + block // 32
            words = tl.load(plan + positions, mask=inside & (positions < end), other=0)
            denied = inside & (((words >> (block % 32)) & 1) == 0)
            tl.store(line + block * id_stride, float("-inf"), mask=denied)
        elif kind == _DENY:
            for start in range(first, end, CHUNK):
                _, ids, mine = _chunk(plan, start, end, low, BLOCK, CHUNK)
                tl.store(line + ids * id_stride, float("-inf"), mask=mine)
        tl.debug_barrier()
    end = tl.load(entry + 4)
    for start in range(tl.load(entry + 3), end, CHUNK):
        positions, ids, mine = _chunk(plan, start, end, low, BLOCK, CHUNK)
        sums = tl.load(plan + num_biases + positions, mask=mine, other=0).to(tl.float32, bitcast=True)
        values = tl.load(line + ids * id_stride, mask=mine).to(tl.float32) + sums
        tl.store(line + ids * id_stride, values.to(logits.dtype.element_ty), mask=mine)


@triton.jit
def _chunk(plan, start, end, low, BLOCK: tl.constexpr, CHUNK: tl.constexpr):  # noqa: N803
    """Return up to CHUNK ids from position `start`: their positions, the ids, and whether each is in the block."""
    positions = start + tl.arange(0, CHUNK)
    ids = tl.load(plan + positions, mask=positions < end, other=-1)
    return positions, ids, (ids >= low) & (ids < low + BLOCK)
