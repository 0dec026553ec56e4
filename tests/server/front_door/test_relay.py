"""Messages that the front door relays to a process, and their replies."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from logitport.errors import LimitExceeded, ServerUnavailable
from logitport_server.front_door.relay import Relay
from logitport_server.principal_process.relayed import RelayedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def process(serve: Callable[[RelayedConnection], object]) -> Iterator[socket.socket]:
    """A thread in place of the process. Yields the front door's socket."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(RelayedConnection(theirs),))
    thread.start()
    yield ours
    thread.join()


def echo(connection: RelayedConnection) -> None:
    while (message := connection.receive()) is not None:
        connection.answer(message[::-1])
    connection.close()


def test_messages_of_any_size() -> None:
    async def relay(ours: socket.socket) -> None:
        stream = Relay(ours, 1 << 26)
        for size in (0, 1, 4, 65_530, 65_531, 65_536, 65_537, 1 << 20, 40_000_001):
            message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            assert await stream.exchange(message) == message[::-1]
        stream.finish()
        await stream.ended

    with process(echo) as ours:
        asyncio.run(relay(ours))


def test_a_reply_over_the_limit_ends_the_stream() -> None:
    async def relay(ours: socket.socket) -> None:
        stream = Relay(ours, 999)
        assert len(await stream.exchange(b"x" * 999)) == 999
        with pytest.raises(ServerUnavailable):
            await stream.exchange(b"x" * 1000)
        await stream.ended

    with process(echo) as ours:
        asyncio.run(relay(ours))


def test_an_error_of_the_process() -> None:
    def refuse(connection: RelayedConnection) -> None:
        connection.receive()
        connection.fail(LimitExceeded("too many"))
        connection.close()

    async def relay(ours: socket.socket) -> None:
        stream = Relay(ours, 1 << 26)
        with pytest.raises(LimitExceeded, match="too many"):
            await stream.exchange(b"frame")
        await stream.ended

    with process(refuse) as ours:
        asyncio.run(relay(ours))


@pytest.mark.parametrize("receives", [False, True])
def test_a_process_that_ends(receives: bool) -> None:
    def end(connection: RelayedConnection) -> None:
        if receives:
            connection.receive()
        connection.close()

    async def relay(ours: socket.socket) -> None:
        stream = Relay(ours, 1 << 26)
        with pytest.raises(ServerUnavailable, match="open a session again"):
            await stream.exchange(b"frame")
        await stream.ended
        with pytest.raises(ServerUnavailable, match="open a session again"):
            await stream.exchange(b"frame")
        stream.finish()

    with process(end) as ours:
        asyncio.run(relay(ours))


def test_a_call_that_is_cancelled_while_its_process_computes() -> None:
    """The late reply is dropped, and the stream ends when the process has closed its end."""
    cancelled = threading.Event()

    def late(connection: RelayedConnection) -> None:
        connection.receive()
        cancelled.wait()
        connection.answer(b"x" * 5_000_000)
        assert connection.receive() is None
        connection.close()

    async def relay(ours: socket.socket) -> None:
        stream = Relay(ours, 1 << 26)
        exchange = asyncio.ensure_future(stream.exchange(b"frame"))
        await asyncio.sleep(0)
        exchange.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange
        stream.finish()
        cancelled.set()
        await stream.ended

    with process(late) as ours:
        asyncio.run(relay(ours))


def test_a_process_that_ends_while_a_large_message_is_sent() -> None:
    """The socket's number is used again, and its next user is not disturbed."""

    async def relay() -> None:
        for _ in range(20):
            ours, theirs = socket.socketpair()
            stream = Relay(ours, 1 << 20)
            exchange = asyncio.ensure_future(stream.exchange(bytes(10_000_000)))
            await asyncio.sleep(0.001)
            theirs.shutdown(socket.SHUT_WR)  # it sends no more, and has not received all
            with pytest.raises(ServerUnavailable):
                await asyncio.wait_for(exchange, 60)
            await stream.ended
            theirs.close()
        with process(echo) as ours:
            again = Relay(ours, 1 << 26)
            assert len(await again.exchange(bytes(10_000_000))) == 10_000_000
            again.finish()
            await again.ended

    asyncio.run(relay())
