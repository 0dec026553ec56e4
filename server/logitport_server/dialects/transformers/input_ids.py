"""A history as transformers hands it to processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from logitport.core.history import History

_SMALLEST_CAPACITY = 64


class InputIds:
    """A history on a device; only the ids that are new are copied there."""

    __slots__ = ("_buffer", "_history", "_known")

    def __init__(self, history: History) -> None:
        self._history = history
        self._buffer = torch.empty(0, dtype=torch.int64)
        # How many ids at the start of the buffer are the history's.
        self._known = 0

    def __len__(self) -> int:
        return self._history.length

    def on(self, device: torch.device) -> torch.Tensor:
        """Prompt, then output: int64[1, length], a view that is good until the history is cut back."""
        length = self._history.length
        if length > len(self._buffer) or self._buffer.device != device:
            grown = torch.empty(max(2 * length, _SMALLEST_CAPACITY), dtype=torch.int64, device=device)
            grown[: self._known] = self._buffer[: self._known]
            self._buffer = grown
        if length > self._known:
            self._buffer[self._known : length] = torch.from_numpy(self._history.token_ids[self._known :])
            self._known = length
        return self._buffer[:length].unsqueeze(0)

    def cut(self) -> None:
        """The history was cut back to its present length."""
        self._known = min(self._known, self._history.length)
