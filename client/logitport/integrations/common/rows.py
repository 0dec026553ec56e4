"""Selects the rows of an engine's logits that are processed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextmanager
def rows_of(logits: torch.Tensor, rows: list[int]) -> Iterator[torch.Tensor]:
    """Yield these rows of float[rows, vocab_size], for processing in place. Those that do not adjoin are copied."""
    if rows == list(range(len(logits))):
        yield logits
    elif rows == list(range(rows[0], rows[-1] + 1)):
        yield logits[rows[0] : rows[-1] + 1]
    else:
        selected = logits[rows]
        yield selected
        logits[rows] = selected
