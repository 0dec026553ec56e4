"""The ids of a request, counted incrementally, and the values that programs compute from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.core.history import History

_SMALLEST_CAPACITY = 64


class RequestTokens:
    """Counts the ids of a request's history, at the first use, and incrementally from then on.

    Args:
        history: of the request. Whoever cuts it back calls `rewound` before more ids join it.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._counted = history.length  # ids that are in `_counts`
        self._counts: dict[bool, _Counts] = {}

    def rewound(self) -> None:
        """Follow a history that was just cut back."""
        if self.history.length < self._counted:
            for token_id in self.history.cut_token_ids(self._counted).tolist():
                for counts in self._counts.values():
                    counts.remove(token_id)
            self._counted = self.history.length

    def counted(self, *, generated: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct ids in any order, and how often each occurs, int64. Views: do not keep them.

        Args:
            generated: leave out the prompt.
        """
        history = self.history
        if self._counted != history.length:
            for token_id in history.token_ids[self._counted :].tolist():
                for counts in self._counts.values():
                    counts.add(token_id)
            self._counted = history.length
        if generated not in self._counts:
            self._counts[generated] = _Counts(history.output_token_ids if generated else history.token_ids)
        return self._counts[generated].arrays()


class _Counts:
    """Distinct ids and their counts, in two arrays without gaps."""

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        ids, counts = np.unique(token_ids, return_counts=True)
        self._size = len(ids)
        capacity = max(_SMALLEST_CAPACITY, 2 * self._size)
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = ids
        self._numbers = np.zeros(capacity, np.int64)
        self._numbers[: self._size] = counts
        self._places = {token_id: place for place, token_id in enumerate(ids.tolist())}

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._ids[: self._size], self._numbers[: self._size]

    def add(self, token_id: int) -> None:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._size
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
            self._ids[place] = token_id
            self._numbers[place] = 0
            self._size += 1
        self._numbers[place] += 1

    def remove(self, token_id: int) -> None:
        place = self._places[token_id]
        self._numbers[place] -= 1
        if self._numbers[place]:
            return
        del self._places[token_id]
        self._size -= 1
        if place < self._size:  # the last one takes the place
            last = self._ids[place] = self._ids[self._size]
            self._numbers[place] = self._numbers[self._size]
            self._places[int(last)] = place


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
    out.copy_(torch.tensor([min(tokens.history.length, window) for tokens in histories]))


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
