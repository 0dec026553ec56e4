"""How many calls with large messages of one principal the server reads at the same time."""

from __future__ import annotations

import asyncio

from logitport_server.access import guard


def test_a_principal_waits_for_its_own_calls_only() -> None:
    async def run() -> None:
        gates = guard._Gates()
        inside: list[str] = []
        leave = asyncio.Event()

        async def call(principal: str) -> None:
            async with gates.of(principal):
                inside.append(principal)
                await leave.wait()

        tasks = [asyncio.create_task(call("anna")) for _ in range(10)] + [asyncio.create_task(call("bert"))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(inside) == ["anna"] * guard._MAX_LARGE_CALLS + ["bert"]
        leave.set()
        await asyncio.gather(*tasks)
        assert inside.count("anna") == 10
        assert not gates._by_principal

    asyncio.run(run())
