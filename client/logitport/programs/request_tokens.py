"""The ids of a request's history, counted incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core.token_counts import TokenCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitport.core.history import History


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
