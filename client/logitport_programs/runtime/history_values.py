"""The values that programs compute from the histories of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.request_tokens import RequestTokens


def fill_history(histories: Sequence[RequestTokens], out: torch.Tensor) -> None:
    """Write the last ids of each history, right-aligned and padded with -1, to int64[rows, window]."""
    host = out if out.device.type == "cpu" else torch.empty(out.shape, dtype=out.dtype)
    array, window = host.numpy(), out.shape[1]
    last = [tokens.history.token_ids[-window:] for tokens in histories]
    if all(len(ids) == window for ids in last):
        np.concatenate(last, out=array.reshape(-1))  # one call takes half as long as one for each row
    else:
        for row, ids in zip(array, last, strict=True):
            row[: window - len(ids)] = -1
            row[window - len(ids) :] = ids
    if host is not out:
        out.copy_(host)


def fill_counts(histories: Sequence[RequestTokens], out: torch.Tensor, *, generated: bool) -> None:
    """Write how often an id occurs in the history to int64[rows, vocab], or whether it does to bool[rows, vocab].

    The memory of `out` must be contiguous.
    """
    cells, counts = _flat(histories, out.shape[1], generated=generated)
    index = torch.from_numpy(cells).to(out.device)
    flat = out.zero_().view(-1)
    if out.dtype is torch.bool:
        flat.index_fill_(0, index, True)
    else:
        flat.scatter_(0, index, torch.from_numpy(counts).to(out.device))


def _flat(histories: Sequence[RequestTokens], vocab_size: int, *, generated: bool) -> Any:
    """Positions in a contiguous [rows, vocab] of all ids inside the vocabulary, and the counts there."""
    counted = [tokens.counted(generated=generated) for tokens in histories]
    sizes = [len(ids) for ids, _ in counted]
    ids = np.concatenate([ids for ids, _ in counted])
    counts = np.concatenate([counts for _, counts in counted])
    cells = ids + np.repeat(np.arange(len(counted)) * vocab_size, sizes)
    inside = (ids >= 0) & (ids < vocab_size)
    return (cells, counts) if inside.all() else (cells[inside], counts[inside])
