"""Slow work of a call, on a thread."""

from __future__ import annotations

import asyncio
import gc
import weakref

from logitport.system.fair_threads import FairThreads
from logitport_server.access import current_call
from logitport_server.access.call_guard import AuthorizedCall
from logitport_server.transports.threads import on_thread
from logitport_session.trust.principals import ANONYMOUS
from tests.waiting import wait_until


def test_the_context_of_an_ended_call_keeps_no_result() -> None:
    """Timers of asyncio that were cancelled keep it until their time."""

    class Reply:
        """Represents a large one."""

    threads = FairThreads(6, "test")

    async def run() -> tuple[AuthorizedCall, weakref.ref[Reply]]:
        call = AuthorizedCall(ANONYMOUS, lambda: None)
        current_call.set(call)
        return call, weakref.ref(await on_thread(threads, Reply))

    gc.disable()
    try:
        call, kept = asyncio.run(run())
        wait_until(lambda: kept() is None)
        assert call.work is None
    finally:
        gc.enable()
        threads.close()
