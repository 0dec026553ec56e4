"""The processes of principals: forked on demand, refused after crashes, and ended when too many are idle."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable
from logitport.system.bounded import BoundedTable
from logitport_server.lifecycle.pidfd import describe_end
from logitport_server.principal_process.process_messages import Ping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.front_door.running_process import RunningProcess
    from logitport_server.front_door.session_zygote import SessionZygote

logger = logging.getLogger(__name__)

# Processes without streams that are kept for the next call of their principal.
_MAX_IDLE = 64
# After so many ends by a crash within this time, the next process of the principal is delayed, for a growing time.
_CRASHES, _CRASH_SECONDS = 2, 60.0
_MAX_REFUSAL_SECONDS = 60.0
_MAX_PRINCIPALS = 1024
# Forks of all principals: one takes 2 to 20 ms. Further ones wait for a while.
_FORKS_PER_SECOND = 50
_FORK_SECONDS, _PAUSE_SECONDS = 20.0, 0.05
_STATUS_SECONDS = 1.0
# For an idle process to end.
_END_SECONDS = 10.0
# For the answer of a process to a ping. The interpreter's lock is held for less, also by the largest messages.
_ANSWER_SECONDS = 30.0
# A process that uses so much of a core is busy: the next session of its principal gets a further process.
_BUSY_PART = 0.8
_MEASURE_SECONDS = 1.0


class Processes:
    """Has the running processes. All methods belong to the event loop.

    Args:
        started: called with each process before its first stream.
        max_of_principal: processes of one principal; by default the number of cores.

    Attributes:
        lost: number of processes that have ended by themselves.
    """

    def __init__(
        self,
        zygote: SessionZygote,
        started: Callable[[RunningProcess], object] = lambda _: None,
        max_of_principal: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zygote = zygote
        self._clock = clock
        self._started = started
        self._max_of_principal = max_of_principal or len(os.sched_getaffinity(0))
        # Of each principal that has any. The least recently used principal first.
        self._running: dict[str, list[RunningProcess]] = {}
        # Processes that were idle, and have not ended yet.
        self._ending: set[RunningProcess] = set()
        self._pinging: dict[RunningProcess, asyncio.Task[None]] = {}
        self._measuring: asyncio.Task[None] | None = None
        self._forking: dict[str, asyncio.Future[RunningProcess]] = {}
        self._crashes: BoundedTable[str, deque[float]] = BoundedTable(_MAX_PRINCIPALS)
        self._forks: deque[float] = deque(maxlen=_FORKS_PER_SECOND)
        self._watching: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.lost = 0

    def __iter__(self) -> Iterator[RunningProcess]:
        return chain.from_iterable(map(list, list(self._running.values())))

    def __len__(self) -> int:
        return sum(map(len, list(self._running.values())))

    async def get(self, principal: str) -> RunningProcess:
        """Return a process of the principal. Forks the first one, and another if all are busy and there may be more.

        Raises:
            LimitExceeded: the last ones have crashed, or no process can be forked now.
            ServerUnavailable: the server ends, or the zygote is being started.
        """
        running = [process for process in self._running.get(principal, ()) if process.is_running]
        running.sort(key=lambda process: (process.is_busy, process.streams))
        if running and (not running[0].is_busy or len(running) >= self._max_of_principal):
            return running[0]
        forking = self._forking.get(principal)
        if forking is None:
            forking = self._forking[principal] = asyncio.ensure_future(self._fork(principal))
            forking.add_done_callback(lambda _: self._forking.pop(principal, None))
        try:
            return await asyncio.shield(forking)
        except (LimitExceeded, ServerUnavailable):
            if running and running[0].is_running:
                return running[0]
            raise

    def begin_stream(self, process: RunningProcess) -> None:
        """Count a stream of a process."""
        process.streams += 1
        if process.principal in self._running:
            self._running[process.principal] = self._running.pop(process.principal)  # the most recently used

    def end_stream(self, process: RunningProcess) -> None:
        """Count the end of a stream. A process beyond the idle ones that are kept ends."""
        process.streams -= 1
        idle = [other for other in self if not other.streams]
        for other in idle[: max(0, len(idle) - _MAX_IDLE)]:
            self._end(other)

    async def close(self, seconds: float) -> int:
        """End all processes. Returns the number of those that had to be killed after this time."""
        self._is_closed = True
        for forking in list(self._forking.values()):
            forking.cancel()
        if self._measuring is not None:
            self._measuring.cancel()
        running = [*self, *self._ending]
        for process in running:
            process.close()
        ended = [process.ended for process in running]
        if ended:
            await asyncio.wait(ended, timeout=max(0.0, seconds))
        late = [process for process in running if not process.ended.done()]
        for process in late:
            process.kill("the server ends, and it did not end in time")
        if late:
            await asyncio.wait([process.ended for process in late], timeout=_STATUS_SECONDS)
        for task in (*self._watching, *self._pinging.values()):
            task.cancel()
        return len(late)

    async def _fork(self, principal: str) -> RunningProcess:
        self._check(principal)
        await self._wait_for_turn()
        process = await self._zygote.fork(principal)
        if self._is_closed:
            process.close()
            raise ServerUnavailable("the server is shutting down; open a session on another one")
        self._running.setdefault(principal, []).append(process)
        self._started(process)
        if self._measuring is None:
            self._measuring = asyncio.ensure_future(self._measure())
        task = asyncio.ensure_future(self._watch(process))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return process

    def _check(self, principal: str) -> None:
        """Raise LimitExceeded if the principal's processes have crashed lately."""
        now = self._clock()
        crashes = self._crashes.get(principal, deque())
        if len(crashes) >= _CRASHES:
            pause = min(2.0 ** (len(crashes) - _CRASHES), _MAX_REFUSAL_SECONDS)
            left = crashes[-1] + pause - now
            if left > 0:
                raise LimitExceeded(
                    f"the process of {principal or 'the caller'!r} has ended {len(crashes)} times within "
                    f"{_CRASH_SECONDS:.0f} s, so that its next session is refused for {left:.1f} s: find the request "
                    "that ends it, in the server's log"
                )

    async def _wait_for_turn(self) -> None:
        """Wait until another process may be forked. Raises LimitExceeded if that takes long."""
        deadline = self._clock() + _FORK_SECONDS
        while len(self._forks) == _FORKS_PER_SECOND and self._clock() - self._forks[0] < 1.0:
            if self._clock() >= deadline:
                raise LimitExceeded(
                    f"the server starts {_FORKS_PER_SECOND} processes within a second at most, and others wait; try "
                    "again later"
                )
            await asyncio.sleep(_PAUSE_SECONDS)
        self._forks.append(self._clock())

    async def _watch(self, process: RunningProcess) -> None:
        """Wait for the end of a process, and record a crash."""
        await process.ended
        self._forget(process)
        status = None
        with suppress(asyncio.TimeoutError):
            status = await asyncio.wait_for(asyncio.shield(process.status), _STATUS_SECONDS)
        if process.is_expected_to_end or self._is_closed:
            return
        now = self._clock()
        crashes = self._crashes.setdefault(process.principal, deque(maxlen=16))
        while crashes and now - crashes[0] > _CRASH_SECONDS:
            crashes.popleft()
        crashes.append(now)
        self.lost += 1
        logger.error(
            "the process %d of %s %s; sessions and calls that have ended with it: %d",
            process.process_id,
            f"principal {process.principal!r}" if process.principal else "the caller",
            _ending(status, process.killed_because),
            process.streams,
            extra={"event": "process_lost", "principal": process.principal, "status": status},
        )

    async def _measure(self) -> None:
        """Find out at intervals which processes are busy."""
        used: dict[RunningProcess, float] = {}
        while True:
            began = time.monotonic()
            await asyncio.sleep(_MEASURE_SECONDS)
            elapsed = time.monotonic() - began
            before, used = used, {process: process.cpu_seconds() for process in self if process.streams}
            for process, seconds in used.items():
                process.is_busy = seconds - before.get(process, seconds) > _BUSY_PART * elapsed
            for process in before.keys() - used.keys():
                process.is_busy = False
            self._ping()

    def _ping(self) -> None:
        """Kill processes that have not answered for half a minute: their callers get other ones."""
        for process in self:
            if process.streams and process not in self._pinging:
                task = self._pinging[process] = asyncio.create_task(_answer(process))
                task.add_done_callback(lambda _, process=process: self._pinging.pop(process))  # type: ignore[misc]

    def _end(self, process: RunningProcess) -> None:
        """Let an idle process end."""
        self._forget(process)
        process.close()
        self._ending.add(process)
        process.ended.add_done_callback(lambda _: self._ending.discard(process))
        kill = partial(process.kill, "it was idle, and did not end in time")
        asyncio.get_running_loop().call_later(_END_SECONDS, kill)

    def _forget(self, process: RunningProcess) -> None:
        running = self._running.get(process.principal, [])
        if process in running:
            running.remove(process)
            if not running:
                del self._running[process.principal]


async def _answer(process: RunningProcess) -> None:
    """Wait until a process answers. Kill it if it does not."""
    try:
        await process.call(Ping(), _ANSWER_SECONDS)
    except ServerUnavailable:
        return  # it has ended
    except LogitportError:
        process.kill(f"it has not answered for {_ANSWER_SECONDS:.0f} s")


def _ending(status: int | None, killed_because: str) -> str:
    if killed_because:
        return f"was killed by the server: {killed_because}"
    if status is None:
        return "has ended"
    cause = ", by the kernel for lack of memory or by another program" if status == -signal.SIGKILL else ""
    return f"{describe_end(status)}{cause}"
