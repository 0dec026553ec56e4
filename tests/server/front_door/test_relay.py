"""Messages that the front door relays to a process, and their replies."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import LimitExceeded, ServerUnavailable
from logitport.system.frame_limits import LARGE_MESSAGE_BYTES
from logitport_server.access import ByteBudgets
from logitport_server.front_door.relay import Relay
from logitport_server.principal_process.relayed import RelayedConnection
from tests.event_loops import on_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


LARGE = 2 * LARGE_MESSAGE_BYTES


@asynccontextmanager
async def relayed(
    serve: Callable[[RelayedConnection], object], max_bytes: int = 1 << 26, room: Any = None
) -> AsyncIterator[Relay]:
    """A stream to a thread in place of the process. Ends the stream, and waits for the thread."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(RelayedConnection(theirs),))
    thread.start()
    stream = Relay(ours, max_bytes, room)
    yield stream
    stream.finish()
    await stream.ended
    await asyncio.to_thread(thread.join)


async def exchange(stream: Relay, message: bytes) -> bytes:
    stream.send(message)
    return await stream.receive()


def echo(connection: RelayedConnection) -> None:
    while (message := connection.receive()) is not None:
        connection.answer(message[::-1])
    connection.close()


@on_loop
async def test_messages_of_any_size() -> None:
    async with relayed(echo) as stream:
        for size in (0, 1, 4, 65_530, 65_531, 65_536, 65_537, 1 << 20, 40_000_001):
            message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            assert await exchange(stream, message) == message[::-1]


@on_loop
async def test_a_reply_over_the_limit_ends_the_stream() -> None:
    async with relayed(echo, 999) as stream:
        assert len(await exchange(stream, b"x" * 999)) == 999
        with pytest.raises(ServerUnavailable):
            await exchange(stream, b"x" * 1000)
        await stream.ended


@on_loop
async def test_an_error_of_the_process() -> None:
    def refuse(connection: RelayedConnection) -> None:
        connection.receive()
        connection.fail(LimitExceeded("too many"))
        connection.close()

    async with relayed(refuse) as stream:
        with pytest.raises(LimitExceeded, match="too many"):
            await exchange(stream, b"frame")
        await stream.ended


@pytest.mark.parametrize("receives", [False, True])
@on_loop
async def test_a_process_that_ends(receives: bool) -> None:
    def end(connection: RelayedConnection) -> None:
        if receives:
            connection.receive()
        connection.close()

    async with relayed(end) as stream:
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match="open a session again"):
                await exchange(stream, b"frame")
            await stream.ended


@on_loop
async def test_a_call_that_is_cancelled_while_its_process_computes() -> None:
    """The late reply is dropped, and the stream ends when the process has closed its end."""
    cancelled = threading.Event()

    def late(connection: RelayedConnection) -> None:
        connection.receive()
        cancelled.wait()
        connection.answer(b"x" * 5_000_000)
        assert connection.receive() is None
        connection.close()

    async with relayed(late) as stream:
        exchanging = asyncio.ensure_future(exchange(stream, b"frame"))
        await asyncio.sleep(0)
        exchanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchanging
        stream.finish()
        cancelled.set()


@on_loop
async def test_a_process_that_ends_while_a_large_message_is_sent() -> None:
    """The socket's number is used again, and its next user is not disturbed."""
    for _ in range(20):
        ours, theirs = socket.socketpair()
        stream = Relay(ours, 1 << 20)
        exchanging = asyncio.ensure_future(exchange(stream, bytes(10_000_000)))
        await asyncio.sleep(0.001)
        theirs.shutdown(socket.SHUT_WR)  # it sends no more, and has not received all
        with pytest.raises(ServerUnavailable):
            await asyncio.wait_for(exchanging, 60)
        await stream.ended
        theirs.close()
    async with relayed(echo) as again:
        assert len(await exchange(again, bytes(10_000_000))) == 10_000_000


def reply_large(connection: RelayedConnection) -> None:
    with suppress(OSError):  # the front door has ended
        while connection.receive() is not None:
            connection.answer(bytes(LARGE))
    connection.close()


@on_loop
async def test_a_large_reply_waits_in_its_process_for_room() -> None:
    """Those before it have room until their callers have passed them on. Small replies wait for nothing."""
    budgets = ByteBudgets(LARGE + 1000)
    async with (
        relayed(reply_large, room=budgets.room("anna")) as first,
        relayed(reply_large, room=budgets.room("anna")) as second,
    ):
        assert len(await exchange(first, b"frame")) == LARGE
        waiting = asyncio.ensure_future(exchange(second, b"frame"))
        await waits(second)
        assert len(second._begun) <= 1 << 16
        first.forget_reply()
        assert len(await waiting) == LARGE
        second.forget_reply()
        assert len(await exchange(first, b"frame")) == LARGE  # ends with a reply that was not passed on
    assert budgets.room("anna").take(LARGE) is None


@pytest.mark.parametrize("ends", ["the stream", "the process", "the call"])
@on_loop
async def test_what_ends_while_a_reply_waits_leaves_the_room_to_others(ends: str) -> None:
    budgets = ByteBudgets(LARGE + 1000)
    async with (
        relayed(reply_large, room=budgets.room("anna")) as first,
        relayed(reply_large, room=budgets.room("anna")) as second,
        relayed(reply_large, room=budgets.room("anna")) as third,
    ):
        assert len(await exchange(first, b"frame")) == LARGE
        waiting = asyncio.ensure_future(exchange(second, b"frame"))
        await waits(second)
        later = asyncio.ensure_future(exchange(third, b"frame"))
        if ends == "the process":
            second.end()
            with pytest.raises(ServerUnavailable):
                await waiting
        else:
            waiting.cancel()
            await asyncio.sleep(0)
        second.finish()
        if ends == "the stream":
            second.end()
        first.forget_reply()
        assert len(await later) == LARGE


@on_loop
async def test_a_process_that_sends_a_large_reply_without_a_message() -> None:
    received = threading.Event()

    def reply_twice(connection: RelayedConnection) -> None:
        connection.receive()
        connection.answer(bytes(LARGE))
        received.wait()
        with suppress(OSError):
            connection.answer(bytes(LARGE))
        connection.close()

    budgets = ByteBudgets(4 * LARGE)
    async with relayed(reply_twice, room=budgets.room("anna")) as stream:
        assert len(await exchange(stream, b"frame")) == LARGE
        received.set()
        await stream.ended
    assert budgets.room("anna").take(4 * LARGE) is None


async def waits(stream: Relay) -> None:
    """Return when a reply of a stream waits for room."""
    assert stream._room is not None
    while stream._room.waiter is None:  # noqa: ASYNC110 - the thread of the process sends it
        await asyncio.sleep(0.001)
