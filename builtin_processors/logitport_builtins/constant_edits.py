"""States with the same edits at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core.compiled import core
from logitport.core.edits import RowEdits
from logitport.stateful import HistoryState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logitport.core.history import History


class PythonTokenList(HistoryState):
    """DENY of the ids of a list, while the output is shorter than `below`; always if `below` is negative."""

    __slots__ = ("_below", "_edits")

    def __init__(self, token_ids: NDArray[np.int32], below: int = -1) -> None:
        self._below = below
        self._edits = RowEdits()
        self._edits.deny(token_ids)

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        if self._below < 0 or history.length - history.prompt_length < self._below:
            edits.extend(self._edits)


class PythonBiasList(HistoryState):
    """BIAS of the ids of a list, with one value for each."""

    __slots__ = ("_edits",)

    def __init__(self, token_ids: NDArray[np.int32], values: Sequence[float]) -> None:
        self._edits = RowEdits()
        self._edits.bias(token_ids, values)

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        edits.extend(self._edits)


TokenList = PythonTokenList if core is None else core.TokenList
BiasList = PythonBiasList if core is None else core.BiasList
