"""The server's record of a request that has its state in a worker."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import RequestContext

# Numbers of processors and states in workers. No number is used twice.
numbers = count(1)


class RemoteState:
    """One request of a processor in a worker.

    Args:
        on_release: called with this object when nothing uses it any more.

    Attributes:
        number: the worker's number for the state.
        context: the request. Its history is live.
        params: JSON.
        history_events: events that the worker must apply before its next call. An id was appended to the history;
            -1 - length means a rewind to that length.
        loaded: the loading of the processor that has the state; None if none has.
        rebuildable: whether the state is a function of the history.
    """

    __slots__ = (
        *("__weakref__", "_on_release", "context", "history_events", "number", "loaded", "params", "rebuildable"),
    )

    def __init__(self, context: RequestContext, params: bytes, on_release: Callable[[RemoteState], object]) -> None:
        self.number = next(numbers)
        self.context = context
        self.params = params
        self.history_events: list[int] = []
        self.loaded: object = None
        self.rebuildable = True
        self._on_release = on_release

    def __del__(self) -> None:
        self._on_release(self)
