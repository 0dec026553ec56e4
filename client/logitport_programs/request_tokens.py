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
        self._places = {token_id: place for place, token_id in enumerate(ids.tolist())}

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct ids in any order, and their counts, int64[n] each. Views, valid until the next change."""
        return self._ids[: self._size], self._numbers[: self._size]

    def add(self, token_id: int) -> None:
        """Count one more occurrence."""
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
        """Count one occurrence less of an id that was counted."""
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
