"""The edits of rows with logits, until a processor reads the rows."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core import tensors
from logitport.core.edits import EditKind, Edits
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Sequence


class WaitingEdits:
    """Collects the edits of calls in their order, and applies them.

    Not at each call: the values of all BIAS edits between two processors that read a row are added to it together. So
    the row gets the same bits, whether the server or the engine applies its edits.

    Args:
        logits: float[rows, vocab_size], a torch tensor or a numpy array.
    """

    def __init__(self, logits: Any) -> None:
        self._logits = logits
        self._calls: list[Edits] = []

    def add(self, edits: Edits) -> None:
        """Add the edits of a call; their rows ascend."""
        if len(edits):
            self._calls.append(edits)

    def apply_to(self, rows: Sequence[int]) -> None:
        """Apply the edits of these rows."""
        calls, self._calls = self._calls, []
        now: list[Edits] = []
        for edits in calls:
            chosen = np.isin(edits.rows, rows)
            for part, selected in ((now, chosen), (self._calls, ~chosen)):
                if selected.any():
                    part.append(edits if selected.all() else edits.taken(np.flatnonzero(selected)))
        _apply(now, self._logits)

    def apply_all(self) -> None:
        """Apply all edits."""
        calls, self._calls = self._calls, []
        _apply(calls, self._logits)

    def present_logits(self) -> Any:
        """The logits, or a copy with the edits that are not applied yet."""
        if not self._calls:
            return self._logits
        copied = tensors.copied(self._logits)
        _apply(self._calls, copied)
        return copied


def _apply(calls: Sequence[Edits], logits: Any) -> None:
    if not calls:
        return
    if sum(EditKind.BIAS in edits.kinds for edits in calls) > 1:
        calls = [reduce(Edits.followed_by, calls)]
    with tensors.without_gradients(logits):  # a processor of this process may have enabled gradients of its rows
        for edits in calls:
            apply_edits(edits, logits)
