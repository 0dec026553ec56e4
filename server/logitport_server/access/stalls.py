"""Time limits on a client's reads and writes."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded
from logitport_session.resources import session_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

STALL_SECONDS = session_limits.STALL_SECONDS


class StallLimit:
    """A context manager with a time limit on a client's reads or writes, of one coroutine. Not reentrant.

    Raises LimitExceeded if the limit is exceeded.

    One timer lasts for many of them: a timer of its own would be a large part of the work for a small frame. Call
    `close` at the end.

    Args:
        what: a clause for the error message that says what has not happened.
        seconds: the limit of each read or write; `STALL_SECONDS` by default.
    """

    __slots__ = ("_began", "_loop", "_seconds", "_stalled", "_task", "_timer", "_what")

    def __init__(self, what: str, seconds: float | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._seconds, self._what = STALL_SECONDS if seconds is None else seconds, what
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._stalled = False

    def __enter__(self) -> None:
        self._began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._began = None
        if self._stalled and kind is asyncio.CancelledError:
            raise LimitExceeded(f"{self._what} within {self._seconds:g} s; send less at once") from None

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._began is None:
            return
        left = self._began + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._stalled = True
            self._task.cancel()


@contextmanager
def stall_limit(what: str, seconds: float | None = None) -> Iterator[None]:
    """Context with a time limit on one read or write. As `StallLimit`."""
    with closing(StallLimit(what, seconds)) as limit, limit:
        yield
