"""Selects the rows of an engine's logits that are processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import torch

# Rows that adjoin, or the indices of others.
Selection = Union[slice, "list[int]"]


def selection_of(rows: list[int]) -> Selection:
    """Return how to select these rows, in this order."""
    return slice(rows[0], rows[-1] + 1) if rows and rows == list(range(rows[0], rows[-1] + 1)) else rows


def rows_of(logits: torch.Tensor, selection: Selection) -> torch.Tensor:
    """Return these rows of float[rows, vocab_size], for processing in place and `write_back`."""
    if isinstance(selection, slice) and selection.start == 0 and selection.stop == logits.shape[0]:
        return logits
    return logits[selection]


def write_back(logits: torch.Tensor, selection: Selection, rows: torch.Tensor) -> None:
    """Write the rows that `rows_of` returned. Does nothing if they adjoin, and so were not copied."""
    if not isinstance(selection, slice):
        logits[selection] = rows
