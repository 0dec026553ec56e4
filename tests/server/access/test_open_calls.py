"""Calls that need no authentication."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from logitport import InvalidArgument, LimitExceeded
from logitport_server.access import open_calls
from logitport_server.access.open_calls import OpenCalls


class Context:
    """A call with a message that has arrived, or never arrives."""

    def __init__(self, message: object = None) -> None:
        self._message = message
        self.written: list[object] = []

    async def read(self) -> object:
        if self._message is None:
            await asyncio.Event().wait()
        return self._message

    async def write(self, reply: object) -> None:
        self.written.append(reply)


async def check(message: object, context: object) -> object:
    return "well"


CHECK: Any = SimpleNamespace(unary_unary=check)
REQUEST = health_pb2.HealthCheckRequest()


def started(calls: OpenCalls, context: Context) -> asyncio.Task[None]:
    return asyncio.create_task(calls.answer(CHECK, context))  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def end(tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_of_the_checks_without_a_message_the_oldest_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MAX_WAITING", 3)

    async def run() -> None:
        calls = OpenCalls()
        tasks = [started(calls, Context()) for _ in range(7)]
        await settle()
        assert [task.done() for task in tasks] == [True] * 4 + [False] * 3
        assert all(isinstance(task.exception(), LimitExceeded) for task in tasks[:4])
        context = Context(message=REQUEST)
        await started(calls, context)
        assert context.written == ["well"], "a check with a message is always answered"
        assert all(type(result) is asyncio.CancelledError for result in (await end(tasks))[5:])

    asyncio.run(run())


def test_a_message_that_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MESSAGE_SECONDS", 0.01)

    async def run() -> None:
        with pytest.raises(LimitExceeded, match="message did not arrive"):
            await started(OpenCalls(), Context())

    asyncio.run(run())


@pytest.mark.parametrize("message", [grpc.aio.EOF, health_pb2.HealthCheckRequest(service="x" * 257)])
def test_an_invalid_message(message: object) -> None:
    async def run() -> None:
        with pytest.raises(InvalidArgument):
            await started(OpenCalls(), Context(message=message))

    asyncio.run(run())
