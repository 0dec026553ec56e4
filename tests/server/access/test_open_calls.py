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

    def __init__(self, peer: str = "ipv4:127.0.0.1:1000", message: object = None) -> None:
        self._peer, self._message = peer, message
        self.written: list[object] = []

    def peer(self) -> str:
        return self._peer

    async def read(self) -> object:
        if self._message is None:
            await asyncio.Event().wait()
        return self._message

    async def write(self, reply: object) -> None:
        self.written.append(reply)


async def check(message: object, context: object) -> object:
    return "well"


async def watch(message: object, context: object) -> None:
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "REFUSAL_SECONDS", 0.0)


CHECK: Any = SimpleNamespace(unary_unary=check, unary_stream=None)
WATCH: Any = SimpleNamespace(unary_unary=None, unary_stream=watch)
REQUEST = health_pb2.HealthCheckRequest()


def started(calls: OpenCalls, handler: Any, context: Context) -> asyncio.Task[None]:
    return asyncio.create_task(calls.answer(handler, context))  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def end(tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_watches_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "MAX_WATCHES", 5)

    async def run() -> None:
        calls = OpenCalls()
        hosts = [f"ipv4:10.0.0.{number}:1" for number in range(8)]
        tasks = [started(calls, WATCH, Context(host, REQUEST)) for host in hosts]
        await settle()
        assert [task.done() for task in tasks] == [False] * 5 + [True] * 3
        assert all(isinstance(task.exception(), LimitExceeded) for task in tasks[5:])
        await end(tasks[:5])
        again = started(calls, WATCH, Context(message=REQUEST))
        await settle()
        assert not again.done(), "ended watches do not count"
        await end([again])

    asyncio.run(run())


def test_watches_of_one_host_whatever_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "MAX_WATCHES_PER_HOST", 2)

    async def run() -> None:
        calls = OpenCalls()
        peers = ["ipv6:%5B::1%5D:1", "ipv6:%5B::1%5D:2", "ipv6:%5B::1%5D:3", "ipv6:%5B::2%5D:1", "unix:", "unix:"]
        tasks = [started(calls, WATCH, Context(peer, REQUEST)) for peer in peers]
        await settle()
        assert [task.done() for task in tasks] == [False, False, True, False, False, False]
        await end(tasks)

    asyncio.run(run())


def test_refusals_wait_and_a_limited_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "MAX_WATCHES", 1)
    monkeypatch.setattr(open_calls, "MAX_WAITING_REFUSALS", 2)
    monkeypatch.setattr(open_calls, "REFUSAL_SECONDS", 3600.0)

    async def run() -> None:
        calls = OpenCalls()
        tasks = [started(calls, WATCH, Context(message=REQUEST)) for _ in range(4)]
        await settle()
        assert [task.done() for task in tasks] == [False, False, False, True]
        await end(tasks[1:3])
        monkeypatch.setattr(open_calls, "REFUSAL_SECONDS", 0.0)
        refused = started(calls, WATCH, Context(message=REQUEST))
        await settle()
        assert isinstance(refused.exception(), LimitExceeded)
        await end(tasks)

    asyncio.run(run())


def test_a_watch_without_a_message_counts() -> None:
    async def run() -> None:
        calls = OpenCalls()
        tasks = [started(calls, WATCH, Context()) for _ in range(open_calls.MAX_WATCHES_PER_HOST + 1)]
        await settle()
        assert [task.done() for task in tasks] == [False] * open_calls.MAX_WATCHES_PER_HOST + [True]
        await end(tasks)

    asyncio.run(run())


def test_of_the_checks_without_a_message_the_oldest_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MAX_WAITING", 3)

    async def run() -> None:
        calls = OpenCalls()
        tasks = [started(calls, CHECK, Context()) for _ in range(7)]
        await settle()
        assert [task.done() for task in tasks] == [True] * 4 + [False] * 3
        assert all(isinstance(task.exception(), LimitExceeded) for task in tasks[:4])
        context = Context(message=REQUEST)
        await started(calls, CHECK, context)
        assert context.written == ["well"], "a check with a message is always answered"
        assert all(type(result) is asyncio.CancelledError for result in (await end(tasks))[5:])

    asyncio.run(run())


def test_a_message_that_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MESSAGE_SECONDS", 0.01)

    async def run() -> None:
        for handler in (CHECK, WATCH):
            with pytest.raises(LimitExceeded, match="message did not arrive"):
                await started(OpenCalls(), handler, Context())

    asyncio.run(run())


@pytest.mark.parametrize("message", [grpc.aio.EOF, health_pb2.HealthCheckRequest(service="x" * 257)])
def test_an_invalid_message(message: object) -> None:
    async def run() -> None:
        for handler in (CHECK, WATCH):
            with pytest.raises(InvalidArgument):
                await started(OpenCalls(), handler, Context(message=message))

    asyncio.run(run())


def test_a_method_that_the_health_service_lacks_is_unimplemented() -> None:
    aborted: list[Any] = []

    class Aborted(Exception):
        pass

    class Aborts(Context):
        async def abort(self, status: grpc.StatusCode, _: str) -> None:
            aborted.append(status)
            raise Aborted

    async def missing(message: object, context: object) -> None:
        raise NotImplementedError

    handler: Any = SimpleNamespace(unary_unary=missing, unary_stream=None)
    context: Any = Aborts(message=health_pb2.HealthListRequest())
    with pytest.raises(Aborted):
        asyncio.run(OpenCalls().answer(handler, context))
    assert aborted == [grpc.StatusCode.UNIMPLEMENTED]
