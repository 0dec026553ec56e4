"""The load that a front door reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import grpc

from logitport_proto import processing_pb2
from logitport_server.access import current_call
from logitport_server.access.call_guard import AuthorizedCall
from logitport_server.front_door.service import FrontDoorService
from logitport_session.trust.principals import ANONYMOUS, Principal

if TYPE_CHECKING:
    from collections.abc import Callable


class Context:
    """A call without messages."""

    async def read(self) -> object:
        await asyncio.sleep(0)
        return grpc.aio.EOF


def service(load: tuple[int, int], accepts: Callable[[Principal], bool] = lambda _: True) -> FrontDoorService:
    async def refresh() -> None:
        """Do nothing: the numbers do not change."""

    return FrontDoorService(cast("Any", None), None, lambda: load, refresh, accepts, lambda: False, 1 << 20)


async def load_of(processing: FrontDoorService, name: str = "alice") -> processing_pb2.GetLoadResponse:
    current_call.set(AuthorizedCall(Principal(name, ANONYMOUS.scopes), lambda: None))
    return await processing.GetLoad(processing_pb2.GetLoadRequest(), cast("Any", None))


def test_the_load_is_reported() -> None:
    async def loads() -> list[processing_pb2.GetLoadResponse]:
        processing = service((2, 65), lambda caller: caller.name == "alice")
        replies = [await load_of(processing, name) for name in ("alice", "bob")]
        processing.drain()
        return [*replies, await load_of(processing)]

    replies = asyncio.run(loads())
    assert [(reply.sessions, reply.requests) for reply in replies] == [(2, 65)] * 3
    assert [reply.accepts_sessions for reply in replies] == [True, False, False]


def test_sessions_that_are_being_opened_are_load() -> None:
    """Many engines that lose a server at the same time would otherwise choose the same one."""

    async def loads() -> list[int]:
        processing = service((0, 0))
        before = await load_of(processing)
        opening = [asyncio.create_task(processing.Session(None, cast("Any", Context()))) for _ in range(3)]
        await asyncio.sleep(0)
        during = await load_of(processing)
        await asyncio.gather(*opening)
        return [one.sessions for one in (before, during, await load_of(processing))]

    assert asyncio.run(loads()) == [0, 3, 0]


def test_freed_memory_is_noted_once_after_large_messages() -> None:
    """Calls of Apply over 1 MiB left their memory in the front door."""

    class Stream:
        relay = Mock()

        async def receive_last(self) -> bytes:
            return b""

    async def noted(size: int) -> list[bool]:
        processing: Any = service((0, 0))

        async def opened(*_: object, **__: object) -> Stream:
            return Stream()

        processing._open, processing._end = opened, lambda *_: None
        current_call.set(AuthorizedCall(Principal("alice", ANONYMOUS.scopes), lambda: None))
        await processing.exchange("apply", bytes(size), cast("Any", None))
        return [processing.take_freed(), processing.take_freed()]

    assert asyncio.run(noted(2 << 20)) == [True, False]
    assert asyncio.run(noted(100)) == [False, False]
