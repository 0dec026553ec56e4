"""Which process a principal's stream gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable
from logitport_server.front_door import processes as module
from logitport_server.front_door.processes import Processes
from tests.event_loops import given

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logitport_server.front_door.session_zygote import SessionZygote


class Process:
    """A process that does nothing. It ends when it is closed or killed."""

    process_id = 1

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.streams = 0
        self.is_busy = self.is_expected_to_end = False
        self.killed_because = ""
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.status: asyncio.Future[int | None] = loop.create_future()

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def cpu_seconds(self) -> float:
        return 0.0

    async def call(self, message: object, seconds: float) -> object:
        return message

    def kill(self, reason: str = "") -> None:
        self.end(-9)

    def close(self) -> None:
        self.is_expected_to_end = True
        self.end(0)

    def end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self.status.set_result(status)


class Zygote:
    """Forks processes.

    Attributes:
        error: raised by the next fork.
    """

    def __init__(self) -> None:
        self.forked: list[Process] = []
        self.error: Exception | None = None

    async def fork(self, principal: str) -> Process:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.forked.append(Process(principal))
        return self.forked[-1]


def with_processes(**options: Any) -> Callable[[Any], Callable[..., None]]:
    """Make a test of a coroutine function that takes processes with these options, their zygote, and fixtures."""

    def make(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def run(*arguments: Any, **fixtures: Any) -> None:
            zygote = Zygote()
            running = Processes(cast("SessionZygote", zygote), **options)
            try:
                await test(running, zygote, *arguments, **fixtures)
            finally:
                await running.close(1.0)

        return given(test, run, 2)

    return make


async def crash(process: Process) -> None:
    process.end(-9)
    for _ in range(5):
        await asyncio.sleep(0)


@with_processes()
async def test_a_principal_has_one_process_however_many_streams_begin_at_once(
    running: Processes, zygote: Zygote
) -> None:
    found = await asyncio.gather(*(running.get("anna") for _ in range(10)), running.get("bert"))
    assert len(set(found)) == 2
    assert [process.principal for process in zygote.forked] == ["anna", "bert"]
    assert await running.get("anna") is found[0]
    assert len(running) == 2


@with_processes(max_of_principal=2)
async def test_a_principal_with_busy_processes_gets_further_ones_up_to_a_limit(
    running: Processes, zygote: Zygote
) -> None:
    first = cast("Any", await running.get("anna"))
    running.begin_stream(first)
    first.is_busy = True
    second = cast("Any", await running.get("anna"))
    assert second is not first
    assert await running.get("anna") is second  # it is not busy
    running.begin_stream(second)
    running.begin_stream(second)
    second.is_busy = True
    assert await running.get("anna") is first  # as many as there may be: the one with fewer streams
    assert len(zygote.forked) == 2


@with_processes(max_of_principal=2)
async def test_a_further_process_that_cannot_be_forked_is_not_needed(running: Processes, zygote: Zygote) -> None:
    first = cast("Any", await running.get("anna"))
    first.is_busy = True
    zygote.error = LimitExceeded("no more processes")
    assert await running.get("anna") is first
    with pytest.raises(LimitExceeded, match="no more processes"):
        await running.get("bert")
    zygote.error = None
    await running.get("bert")


def test_a_principal_is_refused_for_a_growing_time_after_crashes() -> None:
    clock = [1000.0]

    async def test(running: Processes, zygote: Zygote) -> None:
        await crash(cast("Any", await running.get("anna")))
        for seconds in (1.0, 2.0, 4.0):
            await crash(cast("Any", await running.get("anna")))
            with pytest.raises(LimitExceeded, match=f"is refused for {seconds:.1f} s"):
                await running.get("anna")
            await running.get("bert")
            clock[0] += seconds
        await running.get("anna")
        clock[0] += 100
        process = cast("Any", await running.get("anna"))
        await crash(process)
        await running.get("anna")  # the first one within a minute

    with_processes(clock=lambda: clock[0])(test)()


@pytest.mark.parametrize(("principal", "named"), [("anna", "principal 'anna'"), ("", "the caller")])
def test_the_end_of_a_process_is_logged(principal: str, named: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(running: Processes, zygote: Zygote) -> None:
        process = cast("Any", await running.get(principal))
        running.begin_stream(process)
        await crash(process)

    with_processes()(test)()
    assert f"of {named} was killed by SIGKILL, by the kernel for lack of memory or by another program" in caplog.text
    assert "sessions and calls that have ended with it: 1" in caplog.text


@with_processes()
async def test_the_oldest_idle_processes_end(
    running: Processes, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_IDLE", 2)
    found = [cast("Any", await running.get(name)) for name in ("anna", "bert", "carl", "dora")]
    for process in found:
        running.begin_stream(process)
    for process in (found[1], found[0], found[2]):
        running.end_stream(process)
    assert [process.is_running for process in found] == [False, True, True, True]
    assert len(running) == 3
    assert not any("crash" in str(process.status) for process in found)


def test_a_process_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEASURE_SECONDS", 0.01)

    async def hang(message: object, seconds: float) -> object:
        raise LogitportError(f"not answered for {seconds:g} s")

    async def test(running: Processes, zygote: Zygote) -> None:
        hung, idle, sound = [cast("Any", await running.get(name)) for name in ("anna", "bert", "carl")]
        hung.call = idle.call = hang
        running.begin_stream(hung)
        running.begin_stream(sound)
        await asyncio.wait_for(hung.ended, 60)
        assert await running.get("anna") is not hung
        assert sound.is_running
        assert idle.is_running  # it has no streams: nothing waits for it

    with_processes()(test)()


def test_forks_in_a_second_are_limited() -> None:
    clock = [1000.0]

    async def test(running: Processes, zygote: Zygote) -> None:
        for number in range(module._FORKS_PER_SECOND):
            await running.get(f"principal {number}")
        waiting = asyncio.ensure_future(running.get("one more"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        clock[0] += 1.0
        await asyncio.wait_for(waiting, 60)

    with_processes(clock=lambda: clock[0])(test)()


@with_processes(clock=lambda: 1000.0)
async def test_a_fork_that_waits_too_long_is_refused(
    running: Processes, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FORK_SECONDS", 0.0)
    for number in range(module._FORKS_PER_SECOND):
        await running.get(f"principal {number}")
    with pytest.raises(LimitExceeded, match="processes within a second"):
        await running.get("one more")


@with_processes()
async def test_a_process_that_is_forked_while_the_server_ends(running: Processes, zygote: Zygote) -> None:
    forking = asyncio.ensure_future(running.get("anna"))
    await asyncio.sleep(0)
    await running.close(1.0)
    with pytest.raises((ServerUnavailable, asyncio.CancelledError)):
        await forking
    assert not any(process.is_running for process in zygote.forked)
