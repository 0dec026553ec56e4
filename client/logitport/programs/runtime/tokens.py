"""The ids of a request, counted incrementally, and the values that programs compute from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport.core.history import History
from logitport.core.token_counts import TokenCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.core.history import TokenIds


class RequestTokens:
    """Prompt and output ids of one request. The ids are counted at the first use, and incrementally from then on."""

    def __init__(self, prompt_token_ids: TokenIds = (), output_token_ids: TokenIds = ()) -> None:
        self.history = History(prompt_token_ids, output_token_ids)
        self._counts: dict[bool, TokenCounts] = {}

    def __len__(self) -> int:
        return self.history.length

    def append(self, token_id: int) -> None:
        """Add one output id."""
        self.history.append(token_id)
        for counts in self._counts.values():
            counts.add(token_id)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add output ids, oldest first."""
        for token_id in token_ids:
            self.append(token_id)

    def rewind(self, length: int) -> None:
        """Cut back to `length` ids. Raises InvalidArgument as `History.rewind`."""
        cut = self.history.token_ids[length:].tolist() if length >= 0 else []
        self.history.rewind(length)
        for counts in self._counts.values():
            for token_id in cut:
                counts.remove(token_id)

    def counted(self, *, generated: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct ids in any order, and how often each occurs, int64. Views: do not keep them.

        Args:
            generated: leave out the prompt.
        """
        if generated not in self._counts:
            self._counts[generated] = TokenCounts(
                self.history.output_token_ids if generated else self.history.token_ids,
            )
        return self._counts[generated].arrays()


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


def fill_lengths(histories: Sequence[RequestTokens], out: torch.Tensor, window: int) -> None:
    """Write the number of ids of each history that are in the window to int64[rows]."""
    out.copy_(torch.tensor([min(len(tokens), window) for tokens in histories]))


def fill_mask(histories: Sequence[RequestTokens], out: torch.Tensor, *, generated: bool) -> None:
    """Write whether an id occurs in the history to bool[rows, vocab], which must be contiguous."""
    places, _ = _flat(histories, out.shape[1], generated=generated)
    out.zero_()
    out.view(-1).index_fill_(0, torch.from_numpy(places).to(out.device), True)


def fill_counts(histories: Sequence[RequestTokens], out: torch.Tensor, *, generated: bool) -> None:
    """Write how often an id occurs in the history to int64[rows, vocab], which must be contiguous."""
    places, counts = _flat(histories, out.shape[1], generated=generated)
    out.zero_()
    out.view(-1).scatter_(0, torch.from_numpy(places).to(out.device), torch.from_numpy(counts).to(out.device))


def _flat(histories: Sequence[RequestTokens], vocab_size: int, *, generated: bool) -> Any:
    """Positions in a contiguous [rows, vocab] of all ids inside the vocabulary, and the counts there."""
    counted = [tokens.counted(generated=generated) for tokens in histories]
    sizes = [len(ids) for ids, _ in counted]
    ids = np.concatenate([ids for ids, _ in counted])
    counts = np.concatenate([counts for _, counts in counted])
    places = ids + np.repeat(np.arange(len(counted)) * vocab_size, sizes)
    inside = (ids >= 0) & (ids < vocab_size)
    return (places, counts) if inside.all() else (places[inside], counts[inside])
