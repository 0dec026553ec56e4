"""Processors with edits that follow from a state, which is compiled or in Python.

Every class of the compiled core that derives from its `State` has a counterpart in Python with the same constructor,
which derives from `HistoryState`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from logitport.core.compiled import core
from logitport.core.edits import Edits
from logitport.core.row_events import RowEvent
from logitport.processors import EditProcessor

if TYPE_CHECKING:
    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.processors import EditRequest
    from logitport_core._core import State

# The methods of a state, and the processor's methods that call them.
_CALLS = ("advance", "rewind", "edit")


class HistoryState(ABC):
    """The state of one processor for one request. It follows from the request's history alone.

    Attributes:
        advances: whether `advance` does anything; if not, it need not be called.
    """

    __slots__ = ()
    advances: ClassVar[bool] = False

    def advance(self, history: History, token_id: int) -> None:
        """Follow a history after an id was appended."""

    def rewind(self, history: History) -> None:
        """Follow a history that was just cut back to its present length."""

    @abstractmethod
    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:
        """Add the edits of the row that samples the history's next id."""


class StatefulEditProcessor(EditProcessor):
    """An `EditProcessor` with a `start` that sets `request.state` to a `HistoryState`, or to a compiled state.

    Attributes:
        shares_states: whether a state never changes, and follows from the parameters and the width of the logits alone.
            Requests with equal parameters may then have one state.
        bytes_per_id: memory of a state for each id of the history, at most.
        bytes_per_output_id: the same for each id after the prompt, in addition.
    """

    shares_states: ClassVar[bool] = False
    bytes_per_id: ClassVar[int] = 0
    bytes_per_output_id: ClassVar[int] = 0

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
            columns, events = core.edit_rows([state], [request.history], request.vocab_size)
            (compiled,) = Edits(*columns).unpack(1)
            edits.extend(compiled)
            for _, name, values in events:
                edits.add_event(RowEvent(name, values))
        else:
            state.edit(request.history, request.vocab_size, edits)


def is_compiled(state: Any) -> TypeGuard[State]:
    """Whether this is a state of the compiled core, and no subclass that overrides its calls: the core runs its own."""
    if core is None or not isinstance(state, core.State):
        return False
    kind: Any = type(state)
    return kind.__base__ is core.State or all(getattr(kind, call) is getattr(core.State, call) for call in _CALLS)


def runs_state_only(processor: EditProcessor) -> bool:
    """Whether calls of the processor do nothing but call the state. Not if a subclass or the object overrides one."""
    kind, base = type(processor), StatefulEditProcessor
    return (
        isinstance(processor, base)
        and kind.__getattribute__ is object.__getattribute__
        and all(getattr(kind, call) is getattr(base, call) for call in (*_CALLS, "edit_batch"))
        and vars(processor).keys().isdisjoint((*_CALLS, "edit_batch"))
    )
