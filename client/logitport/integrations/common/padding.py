"""Which ids of a padded batch are tokens, and which of its rows have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def tokens_by_id(prompts: NDArray[np.int64], pad_token_id: int | None) -> NDArray[np.bool_]:
    """bool[rows, prompt_length]: false for ids at the start of a prompt that equal `pad_token_id`, if there is one."""
    if pad_token_id is None:
        return np.ones(prompts.shape, bool)
    padding: NDArray[np.bool_] = np.logical_and.accumulate(prompts == pad_token_id, axis=1)
    return ~padding


def tokens_by_mask(prompts: NDArray[np.int64], attention_mask: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[rows, prompt_length]: false where the mask, [prompts, prompt_length], is 0; each prompt has as many rows.

    Raises:
        InvalidArgument: the mask is of other prompts.
    """
    copies, rest = divmod(len(prompts), len(attention_mask))
    if rest or attention_mask.shape[1:] != prompts.shape[1:]:
        raise InvalidArgument(
            f"attention_mask has shape {list(attention_mask.shape)}, the prompts have {list(prompts.shape)}; pass the "
            "mask that generate() gets, and make another processor for prompts of another shape"
        )
    return np.repeat(attention_mask != 0, copies, axis=0)


def running_rows(outputs: NDArray[np.int64], eos_token_ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """The rows of int64[rows, output_length] that hold no end-of-sequence id.

    Args:
        outputs: what was sampled, and behind an end-of-sequence id padding.
        eos_token_ids: the ids that end a row; none if no row ever ends.
        pad_token_id: the padding; None for the first end-of-sequence id, which transformers takes then.

    Raises:
        InvalidArgument: an end-of-sequence id is followed by something else than padding, so it did not end its row.
    """
    ended = np.logical_or.accumulate(np.isin(outputs, eos_token_ids), axis=1)
    if not ended.any():
        return list(range(len(outputs)))
    padding = eos_token_ids[0] if pad_token_id is None else pad_token_id
    strays = np.argwhere(ended[:, :-1] & (outputs[:, 1:] != padding))
    if strays.size:
        row, place = strays[0].tolist()
        raise InvalidArgument(
            f"row {row} goes on with {outputs[row, place + 1]} after its end-of-sequence id, where padding, {padding}, "
            "was expected; give eos_token_id and pad_token_id as generate() has them, or leave eos_token_id out"
        )
    return np.flatnonzero(~ended[:, -1]).tolist()
