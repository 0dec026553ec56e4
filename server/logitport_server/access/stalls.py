"""Time limits on a client's reads and writes."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def stall_limit(seconds: float, what: str, option: str = "--stall-seconds") -> Iterator[None]:
    """Context with a time limit on a client's reads and writes. Raises LimitExceeded if it is exceeded.

    Args:
        seconds: the limit.
        what: a clause for the error message that says what has not happened.
        option: the option that sets the limit; "" for none.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    stalled = False

    def stall() -> None:
        nonlocal stalled
        stalled = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, stall)
    try:
        yield
    except asyncio.CancelledError:
        if not stalled:
            raise
        advice = f", or raise {option}" if option else ""
        raise LimitExceeded(f"{what} within {seconds:g} s; send less at once{advice}") from None
    finally:
        timer.cancel()


class StallLimit:
    """A context manager as `stall_limit`, for many reads or writes of one coroutine. Not reentrant.

    One timer lasts for many of them: a timer of its own would be a large part of the work for a small frame. Call
    `close` at the end.

    Args:
        seconds: the limit of each.
        what: a clause for the error message that says what has not happened.
        option: the option that sets the limit.
    """

    __slots__ = ("_began", "_loop", "_option", "_seconds", "_stalled", "_task", "_timer", "_what")

    def __init__(self, seconds: float, what: str, option: str = "--stall-seconds") -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._seconds, self._what, self._option = seconds, what, option
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
            raise LimitExceeded(
                f"{self._what} within {self._seconds:g} s; send less at once, or raise {self._option}"
            ) from None

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
