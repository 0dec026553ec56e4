"""The seam to processors that run in other processes: a call, and the calls that run at the same time.

A session knows no processes. A dialect with `isolated` has a method `run_calls(calls, seconds)`: it returns
`ConcurrentCalls` for calls of this dialect and of others, which run for at most these seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

# How long a step waits at a deadline for the stacks of processes that have not replied, in seconds.
STACK_SECONDS = 0.1


class NotStarted(Exception):
    """A call that the worker never began, because its process ended during an earlier call. It may be repeated."""


class ConcurrentCalls(Protocol):
    """Calls that run at the same time. A context manager; leaving it ends the calls that still run.

    Attributes:
        waited: how long the caller has waited, in seconds.
        queued: how long calls have waited for busy workers before they began, in seconds; 0 if no worker was busy.
    """

    waited: float
    queued: float

    def __enter__(self) -> Self:
        """Begin the calls."""

    def __exit__(self, *_: object) -> None:
        """End those that still run."""

    def wait(self) -> None:
        """Wait until all calls have ended."""


class RemoteCall:
    """One call of a processor in a worker.

    Args:
        dialect: the processor.
        states: the states of the rows.
        logits: float[rows, vocab_size]; None for a logits-free processor.

    Attributes:
        result: edits, or the processed logits; None before the end and after an error.
        failed: errors of single rows, by their index in the call; the other rows were served.
        events: events of single rows, with their index in the call, in ascending order.
        error: why the call failed; `NotStarted` if it may be repeated.
        splittable: whether calls with fewer rows may succeed where this call has failed.
        seconds: how long the server has waited for the reply; None if the call has not begun.
        ended: value of `perf_counter` when the call ended.
        output: what the processor printed and logged in it.
    """

    def __init__(self, dialect: Any, states: Sequence[Any], logits: Any) -> None:
        self.dialect = dialect
        self.states = states
        self.logits = logits
        self.result: Any = None
        self.failed: dict[int, BaseException] = {}
        self.events: Sequence[tuple[int, Any]] = ()
        self.error: BaseException | None = None
        self.splittable = True
        self.seconds: float | None = None
        self.ended = 0.0

    def fail(self, error: BaseException) -> None:
        """End the call with an error. The first error counts."""
        self.error = self.error or error
        self.ended = time.perf_counter()
