"""Divides the computing of steps between principals, in slices of about a millisecond.

Threads of one interpreter compute one at a time. The interpreter's lock goes to any thread that waits for it, so a
principal with many sessions, or with long steps, would take most of the time. Therefore a thread that computes a step
holds the server's turn, and hands it over at the next `pause` after its slice is used up.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

SLICE_SECONDS = 0.001

# How many items `pausing` yields between two pauses: some hundred microseconds of work.
_ITEMS_PER_PAUSE = 64


class Turns:
    """Lets one thread compute at a time: round-robin between principals, and first come, first served within one.

    Args:
        slice_seconds: how long a thread computes before `pause` hands the turn over.
        clock: returns the time in seconds.
    """

    def __init__(self, slice_seconds: float = SLICE_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_seconds = slice_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        # The turns that wait, by principal. The first principal is next.
        self._waiting: OrderedDict[str, deque[Turn]] = OrderedDict()

    def of(self, principal: str) -> Turn:
        """Return a context manager that holds the turn. A thread must not nest them."""
        return Turn(self, principal)

    @property
    def waiting(self) -> int:
        """Number of threads that wait for the turn."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def _acquire(self, turn: Turn) -> None:
        with self._lock:
            if self._holder is None:
                self._holder = turn
                turn.began = self._clock()
                return
            woken = self._enqueue(turn)
        woken.acquire()
        turn.began = self._clock()

    def _release(self, turn: Turn) -> None:
        with self._lock:
            self._wake_next(turn.principal)

    def _pause(self, turn: Turn) -> None:
        if not self._waiting or self._clock() - turn.began < self._slice_seconds:
            return
        with self._lock:
            if not self._waiting:
                return
            self._wake_next(turn.principal)
            woken = self._enqueue(turn)
        woken.acquire()
        turn.began = self._clock()

    def _enqueue(self, turn: Turn) -> threading.Lock:
        """Add a turn to its principal's queue. Returns the lock on which to wait."""
        self._waiting.setdefault(turn.principal, deque()).append(turn)
        if turn.woken is None:
            turn.woken = threading.Lock()
            turn.woken.acquire()
        return turn.woken

    def _wake_next(self, served: str) -> None:
        """Give the turn to the next thread: one of the principal that was served only if no other principal waits."""
        if served in self._waiting:
            self._waiting.move_to_end(served)
        if not self._waiting:
            self._holder = None
            return
        principal, queue = next(iter(self._waiting.items()))
        turn = queue.popleft()
        if queue:
            self._waiting.move_to_end(principal)
        else:
            del self._waiting[principal]
        self._holder = turn
        assert turn.woken is not None  # noqa: S101 - set by `_enqueue`
        turn.woken.release()


class Turn:
    """One thread's turn, a context manager.

    Attributes:
        principal: name of the principal that the work is charged to.
        began: when its slice began, on the clock of its `Turns`.
        woken: a lock that is released when the turn is given to the waiting thread; None before its first wait.
    """

    __slots__ = ("_turns", "began", "principal", "woken")

    def __init__(self, turns: Turns, principal: str) -> None:
        self._turns = turns
        self.principal = principal
        self.began = 0.0
        self.woken: threading.Lock | None = None

    def __enter__(self) -> None:
        self.acquire()
        _held.turn = self

    def __exit__(self, *_: object) -> None:
        _held.turn = None
        self.release()

    def acquire(self) -> None:
        """Wait for the turn."""
        self._turns._acquire(self)

    def release(self) -> None:
        """Give the turn to the next thread."""
        self._turns._release(self)

    def pause(self) -> None:
        """Hand the turn over if the slice is used up and another thread waits; return when it is this one's again."""
        self._turns._pause(self)


class _Held(threading.local):
    """The turn that the thread holds."""

    turn: Turn | None = None


_held = _Held()


def pause() -> None:
    """Hand the thread's turn over if its slice is used up and another thread waits. Without a turn, do nothing."""
    turn = _held.turn
    if turn is not None:
        turn.pause()


def pausing(items: Iterable[T], every: int = _ITEMS_PER_PAUSE) -> Iterable[T]:
    """Return the items with a pause after each `every` of them; without a turn, return the same object."""
    return items if _held.turn is None else _pausing(items, every)


def _pausing(items: Iterable[T], every: int) -> Iterator[T]:
    for number, item in enumerate(items, 1):
        yield item
        if not number % every:
            pause()


class Released:
    """A context manager in which the thread does not hold its turn: for waits, and for work outside the interpreter.

    It has no effect for a thread without a turn.
    """

    __slots__ = ("_turn",)

    def __enter__(self) -> None:
        turn = self._turn = _held.turn
        if turn is not None:
            _held.turn = None
            turn.release()

    def __exit__(self, *_: object) -> None:
        if self._turn is not None:
            self._turn.acquire()
            _held.turn = self._turn
