"""Processors with edits that follow from a state, which is compiled or in Python.

Every class of the compiled core that derives from its `State` has a counterpart in Python with the same constructor,
which derives from `HistoryState`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from logitport.compiled import core
from logitport.core.edits import Edits
from logitport.processors import EditProcessor

if TYPE_CHECKING:
    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.processors import EditRequest
    from logitport_core._core import State


class HistoryState(ABC):
    """The state of one processor for one request. It follows from the request's history alone.

    Attributes:
        advances: whether `advance` does anything; if not, it need not be called.
    """

    __slots__ = ()
    advances: ClassVar[bool] = False

    def advance(self, history: History, token_id: int) -> None:
        """Follow a history to which an id was just appended."""

    def rewind(self, history: History) -> None:
        """Follow a history that was just cut back to its present length."""

    @abstractmethod
    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:
        """Add the edits of the row that samples the history's next id."""


class StatefulEditProcessor(EditProcessor):
    """An `EditProcessor` of which `start` sets `request.state` to a `HistoryState`, or to a compiled state."""

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Advance the state."""
        request.state.advance(request.history, token_id)

    def rewind(self, request: EditRequest) -> None:
        """Rewind the state."""
        request.state.rewind(request.history)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """Add the edits of the state."""
        state = request.state
        if is_compiled(state):
            (compiled,) = Edits(*state.edit(request.history, request.vocab_size)).unpack(1)
            edits.extend(compiled)
        else:
            state.edit(request.history, request.vocab_size, edits)


def is_compiled(state: Any) -> TypeGuard[State]:
    """Whether this is a state of the compiled core."""
    return core is not None and isinstance(state, core.State)


def runs_state_only(processor: EditProcessor) -> bool:
    """Whether calls of the processor do nothing but call the state. Not if a subclass overrides one of them."""
    kind, base = type(processor), StatefulEditProcessor
    return (
        isinstance(processor, base)
        and kind.advance is base.advance
        and kind.rewind is base.rewind
        and kind.edit is base.edit
        and kind.edit_batch is base.edit_batch
    )
