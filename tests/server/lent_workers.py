"""A front door with real workers, and the ends of principals' processes, all in one process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from logitport import EditProcessor, EditRequest, History, RowEdits, payload
from logitport_sandbox import LAYERS
from logitport_server.config import ServerConfig
from logitport_server.executors.calls.worker import Deadlines
from logitport_server.front_door.running_process import RunningProcess
from logitport_server.front_door.worker_service.lending_service import LendingService
from logitport_server.principal_process import process_messages
from logitport_server.principal_process.channel import Channel
from logitport_server.principal_process.link import Link
from logitport_server.principal_process.workers.lent_executor import LentExecutor
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import by_row
from logitport_session.processor_sources.source import Source
from logitport_session.trust.principals import Party, TrustDomain
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from logitport_server.executors.base import Executor
    from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes

T = TypeVar("T")

SECONDS = 60.0
VOCAB = 64


class EventLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the loop, and return its result."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class StartedPrincipal:
    """A principal's process: a process that sleeps, whose end of the channel is in this process.

    Attributes:
        process: the front door's end.
        link: the process's end.
    """

    def __init__(self, events: EventLoop, name: str, handlers: Any) -> None:
        self._events = events
        self.name = name
        ours, theirs = Channel.pair()
        self._sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        reading, lifeline = os.pipe()
        os.close(reading)
        pidfd = os.pidfd_open(self._sleeping.pid)
        self.process = events.call(RunningProcess, name, ours, pidfd, self._sleeping.pid, lifeline, handlers)
        self._channel = Channel(theirs, process_messages.TO_PROCESS, is_of_process=True)
        self.link = Link(self._channel)
        self._running = threading.Thread(target=self.link.run, daemon=True)

    def run(self) -> None:
        """Handle the messages of the front door from now on."""
        self._running.start()

    def end(self) -> None:
        """Kill the process, and wait until the front door has handled that."""
        self._sleeping.kill()
        self._sleeping.wait(SECONDS)

        async def ended() -> None:
            await asyncio.wait_for(asyncio.shield(self.process.ended), SECONDS)
            await asyncio.sleep(0)

        self._events.run(ended())
        if self._running.ident is not None:
            self._running.join(SECONDS)
        self._channel.close()


class Lender:
    """A front door with real workers, and the processes of principals that use them.

    Args:
        zygotes: fork the workers. They are not closed.
    """

    def __init__(self, zygotes: WorkerZygotes, **options: Any) -> None:
        self.events = EventLoop()
        config = ServerConfig(**{"processor_timeout_seconds": SECONDS, "load_timeout_seconds": 200.0, **options})
        self.service = self.events.call(LendingService, config, zygotes, lambda owner, scope: False)
        self._deadlines = Deadlines(config.processor_timeout_seconds, config.load_timeout_seconds)
        self._principals: list[tuple[StartedPrincipal, LentExecutor]] = []

    def principal(self, name: str) -> tuple[StartedPrincipal, LentExecutor]:
        """Start the process of a principal."""
        principal = StartedPrincipal(self.events, name, self.service.handlers)
        executor = LentExecutor(principal.link, name, self._deadlines, self.service.settings.pythons)
        self.events.call(self.service.start_of, principal.process)
        principal.run()
        self._principals.append((principal, executor))
        return principal, executor

    def close(self) -> None:
        for principal, executor in self._principals:
            executor.close()
            principal.end()
        wait_until(lambda: not self.service.running)
        self.events.close()


class CountsTokens(EditProcessor):
    """Its state is a function of the history."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.bias([0], [float(len(request.history))])


class Held:
    """A processor that a session holds, with one request."""

    def __init__(self, executor: Executor, principal: str, code: Any, tenant: str = "") -> None:
        self.source = source_of(code, principal, tenant)
        self.dialect: Any = executor.load(self.source)
        self.state = self.dialect.start(RequestContext("r", History([1, 2]), {}, VOCAB), {})

    def step(self) -> float:
        """Return the bias of the request."""
        ((_, _, values),) = by_row(self.dialect.edit([self.state]), 1)[0]
        assert values is not None
        return float(values[0])


def source_of(code: Any, principal: str, tenant: str = "") -> Source:
    """Convert a class to the source of a payload that the principal has shipped."""
    shipped = payload.parse(payload.dumps(code))
    return Source(
        shipped.digest, payload=shipped, domain=TrustDomain(principal, Party(principal, tenant), shipped.digest)
    )


def missing_layers() -> list[str]:
    return [layer.name for layer in LAYERS if layer.missing() is not None]


def started(call: Callable[[], T]) -> Future[T]:
    """Make a call on a thread of its own."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is the result
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result
