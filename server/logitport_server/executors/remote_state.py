"""What the server keeps of a request whose state is in a worker."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.dialects import RequestContext
    from logitport_server.executors.remote import RemoteDialect
    from logitport_server.executors.zygote import WorkerProcess

# Of processors and states: in a worker each has one of its own, which none gets again.
numbers = count(1)


class RemoteState:
    """One request, and what its worker must still be told of it.

    Attributes:
        number: how the worker knows it.
        context: the request; its history is live.
        params: JSON.
        told: what has happened to the history since the last call: an id joined it, or -1 - length: it was cut back.
        process: the process that has the state; None if none has.
        kept: whether the state is not a function of the history.
    """

    __slots__ = ("__weakref__", "context", "dialect", "kept", "number", "params", "process", "told")

    def __init__(self, dialect: RemoteDialect, context: RequestContext, params: bytes) -> None:
        self.dialect = dialect
        self.number = next(numbers)
        self.context = context
        self.params = params
        self.told: list[int] = []
        self.process: WorkerProcess | None = None
        self.kept = False

    def __del__(self) -> None:
        self.dialect.forget(self)


def take_told(states: Sequence[RemoteState]) -> tuple[list[int], list[int]]:
    """How much has happened to each history since the last call, and what, of all."""
    counts: list[int] = []
    told: list[int] = []
    for state in states:
        counts.append(len(state.told))
        told += state.told
        state.told.clear()
    return counts, told
