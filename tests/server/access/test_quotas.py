"""Quotas of principals."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from logitport import LimitExceeded
from logitport_server.access import Quotas
from logitport_server.access import quotas as module
from logitport_server.config import ServerConfig
from logitport_session.trust.principals import SCOPES, Principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ALICE, BOB = (Principal(name, frozenset(SCOPES)) for name in ("alice", "bob"))


def run(calls: Callable[[Quotas, list[float]], Awaitable[None]], rate: str = "3/second") -> None:
    """Run with quotas of this rate, on an event loop whose time is the given list's only item."""

    async def with_clock() -> None:
        now = [1000.0]
        asyncio.get_running_loop().time = lambda: now[0]  # type: ignore[method-assign]
        await calls(Quotas(ServerConfig(max_call_rate=rate)), now)

    asyncio.run(with_clock())


async def admitted(quotas: Quotas, principal: Principal, calls: int) -> int:
    """The number of calls that are admitted before the first refusal, of these."""
    for number in range(calls):
        try:
            await quotas.check_rate(principal)
        except LimitExceeded:
            return number
    return calls


@pytest.mark.parametrize(
    ("rate", "seconds"), [("3/second", 1), ("3/minute", 60), ("3 per 2 hours", 7200), ("3/day", 86400)]
)
def test_a_principal_has_its_rate_again_after_a_period(rate: str, seconds: float) -> None:
    async def calls(quotas: Quotas, now: list[float]) -> None:
        assert await admitted(quotas, ALICE, 10) == 3
        now[0] += seconds
        assert await admitted(quotas, ALICE, 10) == 3

    run(calls, rate)


@pytest.mark.parametrize("step", [0.0, -1.0, -3600.0, 3600.0])
def test_the_wall_clock_has_no_effect(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator, NTP or a virtual machine may set it back, which must not refuse a caller."""
    wall = [time.time()]
    monkeypatch.setattr("time.time", lambda: wall[0])

    async def calls(quotas: Quotas, now: list[float]) -> None:
        for _ in range(3):
            assert await admitted(quotas, ALICE, 10) == 3
            now[0] += 1.0
            wall[0] += step

    run(calls)


def test_the_rate_of_one_principal_is_not_that_of_another() -> None:
    async def calls(quotas: Quotas, now: list[float]) -> None:
        assert await admitted(quotas, ALICE, 10) == 3
        assert await admitted(quotas, BOB, 10) == 3

    run(calls)


def test_any_number_of_names_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names may come from certificates."""
    monkeypatch.setattr(module, "_MAX_LIMITERS", 8)

    async def calls(quotas: Quotas, now: list[float]) -> None:
        for number in range(100):
            await quotas.check_rate(Principal(str(number), frozenset(SCOPES)))
            await admitted(quotas, ALICE, 10)
        assert quotas._limiter.cache_info().currsize == 8
        assert await admitted(quotas, ALICE, 1) == 0, "an active principal keeps its count"

    run(calls)


def test_the_error_names_the_rate_and_the_option() -> None:
    async def calls(quotas: Quotas, now: list[float]) -> None:
        await admitted(quotas, ALICE, 3)
        with pytest.raises(LimitExceeded, match=r"'alice' makes more calls than 3/second, .* --max-call-rate"):
            await quotas.check_rate(ALICE)

    run(calls)


def test_whether_a_session_is_accepted() -> None:
    quotas = Quotas(ServerConfig(max_sessions_per_principal=1))
    assert quotas.accepts_session(ALICE)
    end = quotas.begin_session(ALICE)
    assert not quotas.accepts_session(ALICE)
    for name in ("bob", "carol", "dave"):
        assert quotas.accepts_session(Principal(name, frozenset(SCOPES)))
        quotas.begin_session(Principal(name, frozenset(SCOPES)))
    assert not quotas.accepts_session(Principal("erin", frozenset(SCOPES)))
    end()
    assert quotas.accepts_session(ALICE)
