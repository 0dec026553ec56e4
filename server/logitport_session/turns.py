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

from logitport.compiled import core
from logitport.core.bounded import PartyCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logitport_core._core import PrincipalLock

T = TypeVar("T")

SLICE_SECONDS = 0.001
# Names may come from certificates: their number has no limit. The least recent are forgotten.
_MAX_PRINCIPALS = 1024

# How many items `pausing` yields between two pauses: some ten microseconds of work.
ITEMS_PER_PAUSE = 8
# Fewer items are not worth pauses.
_LEAST_ITEMS = 64

# How long work that cannot pause rests, in times of its duration.
_REST = 3
_LONGEST_REST_SECONDS = 0.5


class Turns:
    """Lets one thread compute at a time, of the principal that has used the least time; within it, in order of arrival.

    The time of a principal that arrives is at least what the holder had used at its own beginning: no principal saves
    time for later. A principal that computes little is therefore served at the next pause, however long the others
    compute. Source: start-time fair queueing, in Goyal, Vin and Cheng, "Start-time Fair Queuing: A Scheduling Algorithm
    for Integrated Services Packet Switching Networks", 1996. A round-robin order was tried: a step that waits for a
    worker, or computes on logits, needs the turn several times, and each time waited for a slice of every other
    principal.

    Args:
        slice_seconds: how long a thread computes before `pause` hands the turn over. A sixteenth of it, if a principal
            waits that has used less time.
        clock: returns the time in seconds.
    """

    def __init__(self, slice_seconds: float = SLICE_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_seconds = slice_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        # The turns that wait, by principal. A principal without a waiting turn has no entry.
        self._waiting: OrderedDict[str, deque[Turn]] = OrderedDict()
        # The time that each recent principal has used, and that of the holder when it got the turn.
        self._used: OrderedDict[str, float] = OrderedDict()
        self._now = 0.0
        # Number of sessions and calls of each principal that has any.
        self._present: PartyCounter[str] = PartyCounter()
        # The locks of `step_lock`, of the same principals.
        self._step_locks: dict[str, PrincipalLock] = {}
        self._aside: Turns | None = None
        self._beside: set[AsideTurn] = set()

    def of(self, principal: str) -> Turn:
        """Return a context manager that holds the turn. A thread must not nest them."""
        return Turn(self, principal)

    def aside(self, principal: str) -> AsideTurn:
        """Return a context manager for work that cannot pause, such as parsing a large message.

        One thread at a time does such work, in parallel with the thread that computes steps.
        """
        with self._lock:
            self._aside = self._aside or Turns(self._slice_seconds, self._clock)
            return AsideTurn(self, self._aside.of(principal))

    def join(self, principal: str) -> None:
        """Record that a session or a call of a principal begins."""
        with self._lock:
            self._present[principal] += 1
            if core is not None and principal not in self._step_locks:
                self._step_locks[principal] = core.PrincipalLock()

    def leave(self, principal: str) -> None:
        """Record that it has ended."""
        with self._lock:
            self._present.remove(principal)
            if principal not in self._present:
                self._step_locks.pop(principal, None)

    def step_lock(self, principal: str) -> PrincipalLock | None:
        """Return the lock under which a thread computes steps in the compiled core, which takes no turn.

        With it, each principal has one such thread at a time, and the operating system divides the cores between them.
        None while only one principal has sessions or calls: they use all cores.
        """
        return self._step_locks.get(principal) if len(self._present) > 1 else None

    @property
    def waiting(self) -> int:
        """Number of threads that wait for the turn."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @property
    def waiting_aside(self) -> int:
        """Number of threads that wait for the turn of work that cannot pause."""
        return self._aside.waiting if self._aside is not None else 0

    def _acquire(self, turn: Turn) -> None:
        with self._lock:
            holder = self._holder
            if turn.principal not in self._waiting and (holder is None or holder.principal != turn.principal):
                self._arrive(turn.principal)
            if holder is None:
                self._give(turn)
                return
            woken = self._enqueue(turn)
        woken.acquire()

    def _release(self, turn: Turn) -> None:
        with self._lock:
            self._charge(turn)
            if self._waiting:
                self._wake_next(turn.principal)
            else:
                self._holder = None

    def _pause(self, turn: Turn) -> None:
        if not self._waiting:
            return
        elapsed = self._clock() - turn.began
        if elapsed < self._slice_seconds / 16:
            return
        with self._lock:
            if not self._waiting or not (elapsed >= self._slice_seconds or self._is_behind(turn)):
                return
            self._charge(turn)
            woken = self._enqueue(turn)
            self._wake_next(turn.principal)
        woken.acquire()

    def _arrive(self, principal: str) -> None:
        self._used[principal] = max(self._used.pop(principal, 0.0), self._now)
        if len(self._used) > _MAX_PRINCIPALS:
            oldest = next(iter(self._used))
            if oldest not in self._waiting:
                del self._used[oldest]

    def _is_behind(self, turn: Turn) -> bool:
        """Whether another principal waits that has used no more time than the holder had at its beginning."""
        return any(self._used[other] <= self._now for other in self._waiting if other != turn.principal)

    def _charge(self, turn: Turn) -> None:
        self._used[turn.principal] = self._used.get(turn.principal, self._now) + self._clock() - turn.began

    def _give(self, turn: Turn) -> None:
        self._holder = turn
        self._now = max(self._now, self._used.setdefault(turn.principal, self._now))
        turn.began = self._clock()
        for aside in self._beside:
            aside.others_compute |= turn.principal != aside.principal

    def _enqueue(self, turn: Turn) -> threading.Lock:
        """Add a turn to its principal's queue. Returns the lock on which to wait."""
        self._waiting.setdefault(turn.principal, deque()).append(turn)
        if turn.woken is None:
            turn.woken = threading.Lock()
            turn.woken.acquire()
        return turn.woken

    def _wake_next(self, served: str) -> None:
        """Give the turn to the next thread; of principals with equal times, another one than was served."""
        principal = min(self._waiting, key=lambda other: (self._used.setdefault(other, self._now), other == served))
        queue = self._waiting[principal]
        turn = queue.popleft()
        if not queue:
            del self._waiting[principal]
        self._give(turn)
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
        self._turns._acquire(self)
        _held.turn = self

    def __exit__(self, *_: object) -> None:
        _held.turn = None
        self._turns._release(self)

    def acquire(self) -> None:
        """Wait for the turn."""
        self._turns._acquire(self)

    def release(self) -> None:
        """Give the turn to the next thread."""
        self._turns._release(self)


class AsideTurn:
    """One thread's turn of work aside from the steps, a context manager. A `pause` hands it over to other such work.

    Such work holds the interpreter's lock for milliseconds at a time. If steps of other principals are computed at the
    same time, a rest follows it, so that it takes a part of the time only.

    Attributes:
        principal: name of the principal that the work is charged to.
        others_compute: whether another principal got the turn of `Turns` since this one began.
    """

    __slots__ = ("_began", "_turn", "_turns", "others_compute", "principal")

    def __init__(self, turns: Turns, turn: Turn) -> None:
        self._turns, self._turn = turns, turn
        self.principal = turn.principal
        self.others_compute = False
        self._began = 0.0

    def __enter__(self) -> None:
        self._turn.__enter__()
        self.others_compute = False
        self._began = self._turns._clock()
        with self._turns._lock:
            self._turns._beside.add(self)

    def __exit__(self, *_: object) -> None:
        with self._turns._lock:
            self._turns._beside.discard(self)
        if self.others_compute:
            took = self._turns._clock() - self._began
            time.sleep(min(_REST * took, _LONGEST_REST_SECONDS))
        self._turn.__exit__()


class _Held(threading.local):
    """The turn that the thread holds."""

    turn: Turn | None = None


_held = _Held()


def pause() -> None:
    """Hand the thread's turn over if its slice is used up and another thread waits. Without a turn, do nothing."""
    turn = _held.turn
    if turn is not None:
        turn._turns._pause(turn)


def pausing(items: Iterable[T], count: int, every: int = ITEMS_PER_PAUSE) -> Iterable[T]:
    """Return the items, with pauses between them.

    Args:
        items: what to iterate over.
        count: the number of items, or more. Without a turn, and for few items, the same object is returned.
        every: how many items between two pauses.
    """
    return items if count < _LEAST_ITEMS or _held.turn is None else _pausing(items, every)


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


class Aside(Released):
    """A context manager for work of the thread that cannot pause, see `Turns.aside`."""

    __slots__ = ("_aside",)

    def __enter__(self) -> None:
        super().__enter__()
        self._aside = self._turn._turns.aside(self._turn.principal) if self._turn is not None else None
        if self._aside is not None:
            self._aside.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self._aside is not None:
            self._aside.__exit__()
        super().__exit__(*exception)
