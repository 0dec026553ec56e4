"""The division of slots among processes that a test plays."""

from __future__ import annotations

import asyncio
import logging
import selectors
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import LogitportError
from logitport_server.front_door.worker_service.principal_slots import PrincipalSlots
from logitport_server.principal_process.worker_messages import (
    CancelClaim,
    ClaimSlot,
    ReleaseSlot,
    RequestSlot,
    SlotGranted,
    SlotRefused,
    SlotTaken,
    TakeIdleSlot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class SkippedTime(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own. It advances the clock where another loop would wait."""

    def __init__(self) -> None:
        super().__init__(WithoutWaiting(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class WithoutWaiting(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Adds the time of each wait to a loop's clock instead."""

    def __init__(self, loop: SkippedTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self._loop.now += timeout
        return super().select(timeout and 0.0)


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop that skips time."""

    @wraps(test)
    def run() -> None:
        loop = SkippedTime()
        try:
            loop.run_until_complete(test())
        finally:
            loop.close()

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class PlayedProcess:
    """A process with a number of idle workers, which meets claims only if the test does."""

    def __init__(self, slots: Any, principal: str, idle: int = 0, *, fails: bool = False, hangs: bool = False) -> None:
        self.principal, self.idle, self.fails, self.hangs = principal, idle, fails, hangs
        self.calls = 0
        self.process_id = 1
        self.posted: list[type[Any]] = []
        self._slots = slots
        self._slots.add(self)

    def post(self, message: Any) -> None:
        self.posted.append(type(message))

    async def call(self, message: Any, seconds: float) -> Any:
        assert isinstance(message, TakeIdleSlot)
        self.calls += 1
        await asyncio.sleep(seconds if self.hangs else 0)
        if self.fails or self.hangs:
            raise LogitportError("no answer")
        if not self.idle:
            return SlotTaken(taken=False)
        self.idle -= 1
        self.release()
        return SlotTaken(taken=True)

    def release(self) -> None:
        self._slots.release(self, ReleaseSlot(), [])

    @property
    def held(self) -> int:
        return int(self._slots.held(self))

    def request(self, seconds: float = 1.0, **options: bool) -> Coroutine[Any, Any, Any]:
        result: Coroutine[Any, Any, Any] = self._slots.request(self, RequestSlot(seconds=seconds, **options), [])
        return result

    async def fill(self, count: int) -> None:
        for _ in range(count):
            assert isinstance(await self.request(), SlotGranted)


def counts(refused: SlotRefused) -> tuple[int, int, int, bool]:
    return refused.total, refused.held, refused.share, refused.is_due


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@on_loop
async def test_free_slots_are_lent_to_any_principal() -> None:
    slots = PrincipalSlots(4)
    greedy = PlayedProcess(slots, "greedy")
    await greedy.fill(4)
    assert counts(await greedy.request()) == (4, 4, 4, False)


@on_loop
async def test_a_share_is_claimed_and_waited_for() -> None:
    slots = PrincipalSlots(4)
    greedy, late = PlayedProcess(slots, "greedy"), PlayedProcess(slots, "late")
    await greedy.fill(4)
    requests = [asyncio.ensure_future(late.request(60.0)) for _ in range(3)]
    await settle()
    assert counts(requests[2].result()) == (4, 0, 2, False)  # its share is requested already
    assert greedy.posted == [ClaimSlot, ClaimSlot]
    greedy.release()
    await settle()
    assert [request.done() for request in requests] == [True, False, True]
    greedy.release()
    await settle()
    assert isinstance(requests[1].result(), SlotGranted)
    assert (greedy.held, late.held) == (2, 2)
    assert CancelClaim not in greedy.posted


@on_loop
async def test_a_claim_that_is_not_met_in_time_is_cancelled() -> None:
    slots = PrincipalSlots(2)
    greedy, late = PlayedProcess(slots, "greedy"), PlayedProcess(slots, "late")
    await greedy.fill(2)
    assert counts(await late.request(0.01)) == (2, 0, 1, True)
    assert greedy.posted == [ClaimSlot, CancelClaim]
    greedy.release()  # at the same time
    assert isinstance(await late.request(), SlotGranted)


@on_loop
async def test_the_principal_most_above_its_share_gives_way() -> None:
    slots = PrincipalSlots(7)
    one, two, three, late = (PlayedProcess(slots, name) for name in "abbc")
    await one.fill(2)
    await two.fill(3)
    await three.fill(2)
    request = asyncio.ensure_future(late.request(60.0))
    await settle()
    assert (one.posted, two.posted, three.posted) == ([], [ClaimSlot], [])
    one.release()  # another slot becomes free
    await settle()
    assert isinstance(request.result(), SlotGranted)
    assert two.posted == [ClaimSlot, CancelClaim]


@on_loop
async def test_idle_workers_end_first() -> None:
    slots = PrincipalSlots(3)
    above, other, late = PlayedProcess(slots, "a"), PlayedProcess(slots, "b", idle=1), PlayedProcess(slots, "c")
    await above.fill(2)
    await other.fill(1)
    assert isinstance(await late.request(has_idle=True), SlotRefused)  # it ends its own one
    assert isinstance(await late.request(), SlotGranted)
    assert (above.held, other.held, above.posted) == (2, 0, [])


@on_loop
async def test_without_a_share_only_idle_workers_end() -> None:
    slots = PrincipalSlots(2)
    greedy, late = PlayedProcess(slots, "greedy"), PlayedProcess(slots, "late")
    await greedy.fill(2)
    assert isinstance(await late.request(60.0, counts_share=False), SlotRefused)
    greedy.idle = 1
    assert isinstance(await late.request(60.0, counts_share=False), SlotGranted)
    assert greedy.posted == []


@on_loop
async def test_a_process_that_does_not_answer_is_passed_over() -> None:
    slots = PrincipalSlots(2)
    silent, idle = PlayedProcess(slots, "a", fails=True), PlayedProcess(slots, "b", idle=1)
    await silent.fill(1)
    await idle.fill(1)
    assert isinstance(await PlayedProcess(slots, "c").request(), SlotGranted)


@on_loop
async def test_processes_that_hang_delay_a_request_once() -> None:
    slots = PrincipalSlots(4)
    for principal in "abc":
        await PlayedProcess(slots, principal, hangs=True).fill(1)
    idle = PlayedProcess(slots, "d", idle=1)
    await idle.fill(1)
    late = PlayedProcess(slots, "e")
    assert isinstance(await late.request(60.0), SlotGranted)  # without waiting for them
    assert now() == pytest.approx(0.1)
    assert isinstance(await late.request(60.0), SlotRefused)
    assert now() == pytest.approx(1.1)


@on_loop
async def test_a_request_takes_no_longer_than_it_may() -> None:
    slots = PrincipalSlots(3)
    greedy, other = PlayedProcess(slots, "a", hangs=True), PlayedProcess(slots, "b", hangs=True)
    await greedy.fill(2)
    await other.fill(1)
    assert counts(await PlayedProcess(slots, "c").request(0.2)) == (3, 0, 1, True)
    assert now() == pytest.approx(0.2)


@on_loop
async def test_one_idle_worker_ends_for_a_request() -> None:
    slots = PrincipalSlots(3)
    idle = [PlayedProcess(slots, principal, idle=1) for principal in "abc"]
    for process in idle:
        await process.fill(1)
    assert isinstance(await PlayedProcess(slots, "d").request(), SlotGranted)
    assert sum(process.idle for process in idle) == 2


@on_loop
async def test_processes_without_slots_are_not_asked() -> None:
    slots = PrincipalSlots(1)
    holder, empty = PlayedProcess(slots, "a"), PlayedProcess(slots, "b")
    await holder.fill(1)
    assert isinstance(await PlayedProcess(slots, "c").request(0.0), SlotRefused)  # its deadline has passed
    for _ in range(3):
        assert isinstance(await PlayedProcess(slots, "c").request(), SlotRefused)
    assert (holder.calls, empty.calls) == (3, 0)


@on_loop
async def test_the_slots_of_an_ended_process_are_free() -> None:
    slots = PrincipalSlots(2)
    greedy, late = PlayedProcess(slots, "greedy"), PlayedProcess(slots, "late")
    await greedy.fill(2)
    request = asyncio.ensure_future(late.request(60.0))
    await settle()
    ended: Any = greedy
    slots.remove(ended)
    await settle()
    assert isinstance(request.result(), SlotGranted)
    assert (greedy.held, late.held) == (0, 1)
    greedy.release()  # of before its end
    assert isinstance(await greedy.request(), SlotRefused)


@on_loop
async def test_a_request_of_an_ended_process_waits_for_nothing() -> None:
    slots = PrincipalSlots(2)
    greedy, late = PlayedProcess(slots, "greedy"), PlayedProcess(slots, "late")
    await greedy.fill(2)
    request = asyncio.ensure_future(late.request(60.0))
    await settle()
    request.cancel()
    ended: Any = late
    slots.remove(ended)
    with pytest.raises(asyncio.CancelledError):
        await request
    assert greedy.posted == [ClaimSlot, CancelClaim]
    greedy.release()
    await greedy.fill(1)


@on_loop
async def test_a_process_returns_no_more_than_it_has() -> None:
    slots = PrincipalSlots(1)
    process = PlayedProcess(slots, "a")
    process.release()
    await process.fill(1)
    assert isinstance(await process.request(float("nan")), SlotRefused)


def test_a_process_that_returns_too_many_slots_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    process = PlayedProcess(PrincipalSlots(1), "a")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            process.release()
    assert caplog.text.count("has returned a slot that it does not have") == 1
