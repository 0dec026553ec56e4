"""A history in the form in which transformers passes it to processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from logitport.core.history import History

_SMALLEST_CAPACITY = 64


class InputIds:
    """Keeps a copy of a history on a device; each update copies only the new ids."""

    __slots__ = ("_buffer", "_history", "_num_valid")

    def __init__(self, history: History) -> None:
        self._history = history
        self._buffer = torch.empty(0, dtype=torch.int64)
        # Number of valid ids at the start of the buffer.
        self._num_valid = 0

    def __len__(self) -> int:
        return self._history.length

    def on(self, device: torch.device) -> torch.Tensor:
        """Return prompt and output, int64[1, length]; a view that is valid until the history is cut back."""
        length = self._history.length
        if length > len(self._buffer) or self._buffer.device != device:
            grown = torch.empty(max(2 * length, _SMALLEST_CAPACITY), dtype=torch.int64, device=device)
            grown[: self._num_valid] = self._buffer[: self._num_valid]
            self._buffer = grown
        if length > self._num_valid:
            self._buffer[self._num_valid : length] = torch.from_numpy(self._history.token_ids[self._num_valid :])
            self._num_valid = length
        return self._buffer[:length].unsqueeze(0)

    def cut(self) -> None:
        """Follow a history that was cut back to its present length."""
        self._num_valid = min(self._num_valid, self._history.length)
