"""Finds the real tokens of a padded batch, and its rows that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def tokens_by_id(prompts: NDArray[np.int64], pad_token_id: int | None) -> NDArray[np.bool_]:
    """Return bool[rows, prompt_length]: false for leading ids of a prompt that equal `pad_token_id`; else true."""
    if pad_token_id is None:
        return np.ones(prompts.shape, bool)
    padding: NDArray[np.bool_] = np.logical_and.accumulate(prompts == pad_token_id, axis=1)
    return ~padding


def tokens_by_mask(prompts: NDArray[np.int64], attention_mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool[rows, prompt_length]: false where the mask is 0.

    Args:
        prompts: int64[rows, prompt_length]; each prompt has the same number of consecutive rows.
        attention_mask: [prompts, prompt_length].

    Raises:
        InvalidArgument: the shapes do not match.
    """
    copies, rest = divmod(len(prompts), len(attention_mask))
    if rest or attention_mask.shape[1:] != prompts.shape[1:]:
        raise InvalidArgument(
            f"attention_mask has shape {list(attention_mask.shape)}, the prompts have {list(prompts.shape)}; pass the "
            "mask that generate() gets, and create another processor for prompts of another shape"
        )
    return np.repeat(attention_mask != 0, copies, axis=0)


def running_rows(outputs: NDArray[np.int64], eos_token_ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """Return the rows of int64[rows, output_length] that contain no end-of-sequence id.

    Args:
        outputs: sampled ids, with padding after an end-of-sequence id.
        eos_token_ids: the ids that end a row; empty if no id does.
        pad_token_id: the padding; None for the first end-of-sequence id, as in transformers.

    Raises:
        InvalidArgument: a row continues after an end-of-sequence id with something other than padding.
    """
    ended = np.logical_or.accumulate(np.isin(outputs, eos_token_ids), axis=1)
    if not ended.any():
        return list(range(len(outputs)))
    padding = eos_token_ids[0] if pad_token_id is None else pad_token_id
    invalid = np.argwhere(ended[:, :-1] & (outputs[:, 1:] != padding))
    if invalid.size:
        row, place = invalid[0].tolist()
        raise InvalidArgument(
            f"row {row} continues with {outputs[row, place + 1]} after its end-of-sequence id; expected padding, "
            f"{padding}. Pass eos_token_id and pad_token_id as generate() has them, or leave eos_token_id out"
        )
    return np.flatnonzero(~ended[:, -1]).tolist()
