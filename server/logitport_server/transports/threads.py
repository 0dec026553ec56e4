"""Runs the slow work of a call on a thread, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from logitport_server.access import current_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.system.fair_threads import FairThreads

T = TypeVar("T")


async def on_thread(threads: FairThreads, work: Callable[[], T]) -> T:
    """Run slow work of the current call on a thread, with the present context of variables.

    It counts as the call's work until it ends, even if the call is cancelled before.
    """
    call = current_call.get()
    future = call.work = threads.submit(call.principal.name, partial(contextvars.copy_context().run, work))
    try:
        return await asyncio.wrap_future(future)
    finally:
        if future.done():
            call.work = None  # an idle session, or a timer of asyncio with its context, would keep a large reply
