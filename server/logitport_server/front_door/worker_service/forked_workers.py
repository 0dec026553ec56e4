"""The workers of the principals' processes: forks them, reports their ends, and ends workers of ended processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from logitport.errors import InvalidArgument
from logitport_sandbox import SandboxError
from logitport_server.executors.worker_processes.worker_process import WorkerGone, ZygoteGone
from logitport_server.lifecycle.pidfd import process_id_of, send_signal
from logitport_server.principal_process.worker_messages import (
    ForkWorker,
    WorkerEnded,
    WorkerForked,
    WorkerNotForked,
)
from logitport_session.resources import descriptors
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
    from logitport_server.executors.worker_processes.zygote import StartedWorker
    from logitport_server.front_door.running_process import RunningProcess

logger = logging.getLogger(__name__)

# For a zygote that is being launched. Launches are delayed by half a minute at most.
_LAUNCH_SECONDS = 60.0
# For the end of a worker after its process has returned its slot, or gives it to the next one.
_END_SECONDS = 5.0
# For a slot of a process whose killed workers have not ended yet: with much memory, or while the machine is overloaded.
_SLOT_SECONDS = 60.0


@dataclass(eq=False)
class _LentWorker:
    """A worker that runs.

    Attributes:
        pidfd: a descriptor of its process, of this object.
        process_id: its id; 0 if it is not visible here.
    """

    pidfd: int
    process_id: int

    def kill(self) -> None:
        send_signal(self.pidfd)


@dataclass(eq=False)
class _LentWorkers:
    """The workers of one process.

    Attributes:
        running: by the number that the process has given them.
        forking: numbers of those that are requested.
        starting: how many of these have a slot.
        surplus: for each running worker without a slot, when one is killed, in event-loop seconds.
        ended: set when a worker ends. The next end has an event of its own.
        turn: held during a fork. A zygote makes one fork after the other, so that many requests of one process would
            delay all others.
    """

    running: dict[int, _LentWorker] = field(default_factory=dict)
    forking: set[int] = field(default_factory=set)
    starting: int = 0
    surplus: deque[float] = field(default_factory=deque)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextmanager
    def starts(self) -> Iterator[None]:
        """Count a worker that has a slot and does not run yet."""
        self.starting += 1
        try:
            yield
        finally:
            self.starting -= 1
            self.signal()

    def signal(self) -> None:
        """Let those that wait for a slot look again."""
        self.ended.set()
        self.ended = asyncio.Event()


class ForkedWorkers:
    """Forks workers for processes. All methods belong to the event loop, except `process_ids` and `len`.

    A process is not trusted to keep to its slots. A worker is forked only if the process has a slot for it. A process
    ends a worker before it returns the slot; if it does not, its oldest worker is killed after `_END_SECONDS`.

    Args:
        zygotes: fork the workers.
        slots: returns the number of slots that a process has.
        may_hold_gpu: whether workers of this owner may hold the GPU.
        max_workers: the number of all slots, and how many workers a process may request at the same time.
    """

    def __init__(
        self,
        zygotes: WorkerZygotes,
        slots: Callable[[RunningProcess], int],
        may_hold_gpu: Callable[[str], bool],
        max_workers: int,
    ) -> None:
        self._zygotes = zygotes
        self._slots = slots
        self._may_hold_gpu = may_hold_gpu
        self._max_workers = max_workers
        self._of: dict[RunningProcess, _LentWorkers] = {}
        # All workers that have not ended, also of ended processes.
        self._alive: set[_LentWorker] = set()
        self._log_limit = LogLimit()

    def __len__(self) -> int:
        return len(self._alive)

    def process_ids(self) -> list[int]:
        """Return the visible process ids of all workers."""
        return [worker.process_id for worker in tuple(self._alive) if worker.process_id]

    def process_ids_of(self, process: RunningProcess) -> set[int]:
        """Return the visible process ids of the workers of a process."""
        workers = self._of.get(process)
        return {worker.process_id for worker in workers.running.values()} - {0} if workers is not None else set()

    def add(self, process: RunningProcess) -> None:
        """Fork workers for a process from now on."""
        self._of[process] = _LentWorkers()

    def remove(self, process: RunningProcess) -> None:
        """Kill the workers of a process that has ended."""
        workers = self._of.pop(process, None)
        if workers is not None:
            for worker in workers.running.values():
                worker.kill()
            workers.signal()

    def slot_returned(self, process: RunningProcess) -> None:
        """Kill a worker of a process that has returned its slot, unless it ends soon."""
        workers = self._of.get(process)
        if workers is not None:
            self._note_surplus(process, workers)

    async def fork(
        self, process: RunningProcess, request: ForkWorker, _descriptors: list[int]
    ) -> tuple[WorkerForked, list[int]] | WorkerNotForked:
        """Handle a request for a worker.

        Raises:
            InvalidArgument: the process has violated the protocol.
            LimitExceeded: no descriptor is free.
        """
        workers = self._of.get(process)
        if workers is None or request.python not in self._zygotes.paths:
            raise InvalidArgument(f"no worker of Python {request.python[:16]!r} can be forked for this process")
        number = request.worker
        if number in workers.running or number in workers.forking or len(workers.forking) >= self._max_workers:
            raise InvalidArgument("a process has requested a worker twice, or too many workers")
        workers.forking.add(number)
        try:
            await self._wait_for_slot(process, workers)
            with workers.starts(), descriptors.reported():
                async with workers.turn:
                    started = await self._started(request)
                return self._lend(process, workers, number, started)
        except WorkerGone as gone:
            return WorkerNotForked(reason=str(gone), zygote_gone=isinstance(gone, ZygoteGone))
        finally:
            workers.forking.discard(number)

    async def _started(self, request: ForkWorker) -> StartedWorker:
        """Fork a worker. Raises WorkerGone, LimitExceeded, OSError."""
        holds_gpu = request.wants_gpu and self._may_hold_gpu(request.domain.owner)
        launched = self._zygotes.launched(request.python, holds_gpu=holds_gpu)
        try:
            # Not `wait_for`: it would cancel the launch, which serves all.
            done, _ = await asyncio.wait([asyncio.wrap_future(launched)], timeout=_LAUNCH_SECONDS)
            if not done:
                raise WorkerGone("could not be forked: the process that forks workers is being launched")
            zygote = done.pop().result()
        except (SandboxError, OSError) as error:
            if descriptors.is_shortage(error):
                raise
            raise WorkerGone(f"could not be forked: {error}") from error
        forking = zygote.start_worker()
        started = asyncio.wrap_future(forking)
        try:
            # Shielded, because a cancelled fork would leave its worker without an owner.
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            forking.add_done_callback(_discard)
            started.add_done_callback(lambda _: started.exception())  # asyncio logs an exception that is not retrieved
            raise

    async def _wait_for_slot(self, process: RunningProcess, workers: _LentWorkers) -> None:
        """Wait until the process has a slot for a further worker. The previous worker in it may be about to end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SLOT_SECONDS
        warning = loop.call_later(_END_SECONDS, self._warn, process, "has requested more workers than it has slots")
        try:
            while self._of.get(process) is workers and len(workers.running) + workers.starting >= self._slots(process):
                await asyncio.wait_for(workers.ended.wait(), deadline - loop.time())
        except asyncio.TimeoutError:
            raise WorkerGone("could not be forked: no slot is free for it") from None
        finally:
            warning.cancel()

    def _lend(
        self, process: RunningProcess, workers: _LentWorkers, number: int, started: StartedWorker
    ) -> tuple[WorkerForked, list[int]]:
        """Record a worker, and return it as the answer. `RunningProcess` closes the descriptors."""
        try:
            if self._of.get(process) is not workers:
                raise WorkerGone("could not be forked: its process has ended")
            worker = _LentWorker(os.dup(started.pidfd), process_id_of(started.pidfd))
        except BaseException:
            _end_started(started)
            raise
        workers.running[number] = worker
        self._alive.add(worker)
        self._note_surplus(process, workers)  # its slot may have been returned meanwhile
        loop = asyncio.get_running_loop()

        def ended(done: Future[int | None]) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(partial(self._end, process, workers, number, done.result()))

        # The worker may have ended already, but the process knows no worker before the answer. `RunningProcess` has
        # added its callback, which posts the answer, before this task began; callbacks run in their order.
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(lambda _: started.ended.add_done_callback(ended))
        return WorkerForked(holds_gpu=started.holds_gpu), [started.connection.detach(), started.pidfd]

    def _end(self, process: RunningProcess, workers: _LentWorkers, number: int, status: int | None) -> None:
        worker = workers.running.pop(number)
        self._alive.remove(worker)
        os.close(worker.pidfd)
        workers.signal()
        self._note_surplus(process, workers)
        process.post(WorkerEnded(worker=number, status=status))

    def _note_surplus(self, process: RunningProcess, workers: _LentWorkers) -> None:
        """Record the workers that run without a slot. The oldest records go first: workers end in order."""
        if self._of.get(process) is not workers:
            return
        surplus = max(0, len(workers.running) - self._slots(process))
        while len(workers.surplus) > surplus:
            workers.surplus.popleft()
        loop = asyncio.get_running_loop()
        while len(workers.surplus) < surplus:
            workers.surplus.append(loop.time() + _END_SECONDS)
            loop.call_at(workers.surplus[-1], self._kill_surplus, process, workers, workers.surplus[-1])

    def _kill_surplus(self, process: RunningProcess, workers: _LentWorkers, deadline: float) -> None:
        """Kill a worker for each record up to this deadline."""
        self._note_surplus(process, workers)
        due = sum(recorded <= deadline for recorded in workers.surplus)
        if due and self._of.get(process) is workers:
            self._warn(process, "keeps workers without slots; the oldest are killed")
            # Those that were killed before and have not ended are the oldest, and count.
            for worker in list(workers.running.values())[:due]:
                worker.kill()

    def _warn(self, process: RunningProcess, what: str) -> None:
        text = "the process %d of %r %s"
        self._log_limit.warn(logger, process.principal, text, process.process_id, process.principal, what)


def _discard(forking: Future[StartedWorker]) -> None:
    if forking.exception() is None:
        _end_started(forking.result())


def _end_started(started: StartedWorker) -> None:
    send_signal(started.pidfd)
    started.connection.close()
    os.close(started.pidfd)
