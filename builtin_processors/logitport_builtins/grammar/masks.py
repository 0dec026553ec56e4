"""Which ids the grammars of a step's rows allow next."""

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
    from logitport_builtins.grammar.matching import Matching
    from logitport_builtins.grammar.tokenizers import Tokenizer

_MAX_THREADS = 16


def say_allowed(matchings: Sequence[Matching], edits: Sequence[RowEdits], vocab_size: int, *, watch: bool) -> bool:
    """Say which ids may follow: those that the grammar allows, and the end of the sequence where it is complete.

    Args:
        matchings: rows of one tokenizer, none of them `ended` or `strayed`.
        edits: what is said of each.
        vocab_size: width of the logits.
        watch: compute one mask after the other, so that it is known which one takes long.

    Returns:
        Whether they took so long that the next ones should be watched: one mask did, or the machine is busy.

    Raises:
        ProcessorFailed: a row's grammar leads nowhere, has used up its limits, or takes too long. Asked for alone, the
            others get their masks.
    """
    tokenizer = matchings[0].grammar.tokenizer
    began = time.perf_counter()
    masks = _fill(matchings, tokenizer, watch=watch)
    slow = time.perf_counter() - began > MAX_MASK_SECONDS
    complete = _take_bit(masks, tokenizer.vocab_size)
    masks = _fit(masks, bitmask_words(vocab_size))
    for matching, mask, may_end, row_edits in zip(matchings, masks, complete, edits, strict=True):
        for token_id in matching.eos_token_ids:
            _put_bit(mask, token_id, may_end)
        _say(mask, row_edits)
    return slow


def _fill(matchings: Sequence[Matching], tokenizer: Tokenizer, *, watch: bool) -> NDArray[np.uint32]:
    """Token bitmasks, uint32[rows, words], of all ids of the tokenizer and the one that stands for the end."""
    masks = np.empty((len(matchings), bitmask_words(tokenizer.vocab_size + 1)), np.uint32)
    executor = _executor()
    together = executor is not None and len(matchings) > 1 and not watch
    if executor is not None and together:
        rows = [(matching.matcher, row) for row, matching in enumerate(matchings)]
        executor.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.strides[0], len(rows))
    for matching, mask in zip(matchings, masks, strict=True):
        if not together or matching.matcher.is_error():
            _fill_alone(matching, mask)
    return masks


def _fill_alone(matching: Matching, mask: NDArray[np.uint32]) -> None:
    began = time.thread_time()  # which a busy machine does not lengthen
    if not matching.matcher.is_error():
        matching.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matching.matcher.is_error():
        matching.recover()
        matching.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    took = time.thread_time() - began
    if took > MAX_MASK_SECONDS:
        matching.give_up(f"its mask took {took:.2f} s, and may take {MAX_MASK_SECONDS} s: write a simpler grammar")
    if matching.matcher.is_error():
        matching.give_up()
    matching.check()


@lru_cache(maxsize=1)
def _executor() -> LLExecutor | None:
    """Threads that compute the masks of several rows at once; None on a machine where that would be one."""
    from llguidance import LLExecutor

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return LLExecutor(min(threads - 1, _MAX_THREADS)) if threads > 2 else None


def _take_bit(masks: NDArray[np.uint32], token_id: int) -> list[bool]:
    """Clear the bit of this id in every row; whether it was set."""
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
    """As wide as the logits; ids that the tokenizer has not are not allowed."""
    rows, have = masks.shape
    if have == words:
        return masks
    fitting = np.zeros((rows, words), np.uint32)
    fitting[:, : min(have, words)] = masks[:, :words]
    return fitting


def _say(mask: NDArray[np.uint32], edits: RowEdits) -> None:
    """As a list where the ids lie in so few words that it is shorter."""
    if 32 * np.count_nonzero(mask) > len(mask):
        edits.say(EditKind.BITMASK, mask.view(np.int32), None)  # nobody else has the mask: it need not be copied
        return
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    places, in_word = bits.nonzero()
    edits.allow(words[places] * 32 + in_word)
