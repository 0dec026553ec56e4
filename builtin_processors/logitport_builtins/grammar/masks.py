"""Makes the masks of a step: for each row, the ids that its grammar allows next."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.edits import EditKind, bitmask_words
from logitport_builtins.grammar.trial import MAX_MASK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLExecutor
    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport_builtins.grammar.grammar_state import GrammarState
    from logitport_builtins.grammar.grammar_tokenizer import GrammarTokenizer

_MAX_THREADS = 16


def add_allowed_ids(
    states: Sequence[GrammarState], edits: Sequence[RowEdits], vocab_size: int, *, measure_each: bool
) -> bool:
    """Add the ids that may follow to the edits: those that the grammar allows, and the end where it is complete.

    Args:
        states: rows of one tokenizer, none of them `ended` or `mismatched`.
        edits: the edits of each row.
        vocab_size: width of the logits.
        measure_each: compute one mask after the other, to find the one that takes long.

    Returns:
        Whether this call was slow, so that the next calls should measure each mask. The cause is one slow mask, or a
        busy machine.

    Raises:
        ProcessorFailed: a row's grammar allows no id, has reached a limit, or takes too long. A call without that row
            succeeds.
    """
    tokenizer = states[0].grammar.tokenizer
    began = time.perf_counter()
    masks = _compute_masks(states, tokenizer, measure_each=measure_each)
    slow = time.perf_counter() - began > MAX_MASK_SECONDS
    complete = _take_bit(masks, tokenizer.vocab_size)
    masks = _fit(masks, bitmask_words(vocab_size))
    for state, mask, may_end, row_edits in zip(states, masks, complete, edits, strict=True):
        ends = may_end and state.matcher.is_accepting()  # <[*]> in a grammar names the additional end token, too
        if ends and not mask.any():
            row_edits.event("grammar_complete")
        for token_id in state.eos_token_ids if ends else state.text_ends:
            _put_bit(mask, token_id, ends)
        _add_mask(mask, row_edits)
    return slow


def _compute_masks(
    states: Sequence[GrammarState], tokenizer: GrammarTokenizer, *, measure_each: bool
) -> NDArray[np.uint32]:
    """Compute token bitmasks, uint32[rows, words], of the tokenizer's ids and its additional end token."""
    masks = np.empty((len(states), bitmask_words(tokenizer.vocab_size + 1)), np.uint32)
    executor = _executor()
    together = executor is not None and len(states) > 1 and not measure_each
    if executor is not None and together:
        rows = [(state.matcher, row) for row, state in enumerate(states)]
        executor.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.strides[0], len(rows))
    for state, mask in zip(states, masks, strict=True):
        if not together or state.matcher.is_error():
            _compute_mask(state, mask)
    return masks


def _compute_mask(state: GrammarState, mask: NDArray[np.uint32]) -> None:
    began = time.thread_time()  # processor time, which other processes do not lengthen
    if not state.matcher.is_error():
        state.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if state.matcher.is_error():
        state.restart_matcher()
        state.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    took = time.thread_time() - began
    if took > MAX_MASK_SECONDS:
        state.fail(f"its mask took {took:.2f} s; the limit is {MAX_MASK_SECONDS} s: write a simpler grammar")
    if state.matcher.is_error():
        state.fail()
    state.check()


@lru_cache(maxsize=1)
def _executor() -> LLExecutor | None:
    """Threads that compute the masks of several rows at once; None on a machine with room for only one thread."""
    from llguidance import LLExecutor

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return LLExecutor(min(threads - 1, _MAX_THREADS)) if threads > 2 else None


def _take_bit(masks: NDArray[np.uint32], token_id: int) -> list[bool]:
    """Clear the bit of this id in every row. Returns whether it was set, by row."""
    word, bit = token_id // 32, np.uint32(1 << token_id % 32)
    was_set: list[bool] = (masks[:, word] & bit != 0).tolist()
    masks[:, word] &= ~bit
    return was_set


def _put_bit(mask: NDArray[np.uint32], token_id: int, value: bool) -> None:
    bit = np.uint32(1 << token_id % 32)
    if value:
        mask[token_id // 32] |= bit
    else:
        mask[token_id // 32] &= ~bit


def _fit(masks: NDArray[np.uint32], words: int) -> NDArray[np.uint32]:
    """Cut or extend masks to the width of the logits; ids that the tokenizer lacks are not allowed."""
    rows, have = masks.shape
    if have == words:
        return masks
    fitting = np.zeros((rows, words), np.uint32)
    fitting[:, : min(have, words)] = masks[:, :words]
    return fitting


def _add_mask(mask: NDArray[np.uint32], edits: RowEdits) -> None:
    """Add a mask to the edits, as a list of ids where that is shorter."""
    if 32 * np.count_nonzero(mask) > len(mask):
        edits.say(EditKind.BITMASK, mask.view(np.int32), None)  # no copy: the mask has no other user
        return
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    positions, in_word = bits.nonzero()
    edits.allow(words[positions] * 32 + in_word)
