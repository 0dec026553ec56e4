"""The ids of a request's history, counted incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.history import History


_SMALLEST_CAPACITY = 64


class TokenCounts:
    """Distinct ids and how often each occurs, in two arrays without gaps."""

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        """Count ids, int32[n]."""
        ids, counts = np.unique(token_ids, return_counts=True)
        self._size = len(ids)
        capacity = max(_SMALLEST_CAPACITY, 2 * self._size)
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = ids
        self._numbers = np.zeros(capacity, np.int64)
        self._numbers[: self._size] = counts
        self._indices = {token_id: index for index, token_id in enumerate(ids.tolist())}

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct ids in any order, and their counts, int64[n] each. Views, valid until the next change."""
        return self._ids[: self._size], self._numbers[: self._size]

    def add(self, token_id: int) -> None:
        """Count one more occurrence."""
        index = self._indices.get(token_id)
        if index is None:
            index = self._indices[token_id] = self._size
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
            self._ids[index] = token_id
            self._numbers[index] = 0
            self._size += 1
        self._numbers[index] += 1

    def remove(self, token_id: int) -> None:
        """Count one occurrence less of an id that was counted."""
        index = self._indices[token_id]
        self._numbers[index] -= 1
        if self._numbers[index]:
            return
        del self._indices[token_id]
        self._size -= 1
        if index < self._size:  # the last one moves there
            last = self._ids[index] = self._ids[self._size]
            self._numbers[index] = self._numbers[self._size]
            self._indices[int(last)] = index


class RequestTokens:
    """Counts the ids of a request's history, at the first use, and incrementally from then on.

    Args:
        history: of the request. The code that truncates it calls `rewound` before more ids are appended.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._counted = history.length  # ids that are in `_counts`
        self._counts: dict[bool, TokenCounts] = {}

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
            self._counts[generated] = TokenCounts(history.output_token_ids if generated else history.token_ids)
        return self._counts[generated].arrays()
