"""A time limit on a client's reads and writes."""

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
