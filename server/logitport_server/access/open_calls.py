"""Calls that need no authentication: health checks. Their number, duration and messages are limited."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_server.access.stalls import stall_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.access.grpc_errors import Context

# A watch is open until its client ends it, and takes about 20 kB.
MAX_WATCHES = 256
MAX_WATCHES_PER_HOST = 64

# A refused watch waits so long before its error, and keeps its place in its connection: a client that opens them
# without end would otherwise use most of the event loop's time. The number that wait at the same time is limited.
REFUSAL_SECONDS = 1.0
MAX_WAITING_REFUSALS = 256

# Checks whose message has not arrived. Further ones replace the oldest, so that a check with a message is answered,
# however many there are without.
_MAX_WAITING = 256
_MESSAGE_SECONDS = 5.0

_MAX_NAME_LENGTH = 256


class OpenCalls:
    """Answers the calls of all clients, authenticated or not."""

    def __init__(self) -> None:
        self._watches: Counter[str] = Counter()
        self._waiting_refusals = 0
        self._waiting: OrderedDict[asyncio.Task[Any], None] = OrderedDict()
        self._replaced: set[asyncio.Task[Any]] = set()

    async def answer(self, handler: Any, context: Context) -> None:
        """Read the call's message and answer it.

        Raises:
            InvalidArgument: there is no message, or its name is too long.
            LimitExceeded: there are too many such calls, or the message does not arrive.
        """
        if handler.unary_unary is None:
            host = _host(context.peer())
            await self._delay_refusal(host)
            with self._watch(host):
                await handler.unary_stream(await _message(context), context)
            return
        with self._wait():
            message = await _message(context)
        try:
            reply = await handler.unary_unary(message, context)
        except NotImplementedError:  # gRPC's health service has no `List`
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the health service has Check and Watch only")
        with stall_limit(_MESSAGE_SECONDS, "the reply was not received", option=""):
            await context.write(reply)

    async def _delay_refusal(self, host: str) -> None:
        """Wait, if a watch of this host would be refused now."""
        if not self._are_too_many(host) or self._waiting_refusals >= MAX_WAITING_REFUSALS:
            return
        self._waiting_refusals += 1
        try:
            await asyncio.sleep(REFUSAL_SECONDS)
        finally:
            self._waiting_refusals -= 1

    def _are_too_many(self, host: str) -> bool:
        return self._watches.total() >= MAX_WATCHES or self._watches[host] >= MAX_WATCHES_PER_HOST

    @contextmanager
    def _watch(self, host: str) -> Iterator[None]:
        """Count a watch. Raises LimitExceeded if its host, or all hosts, have too many."""
        if self._are_too_many(host):
            raise LimitExceeded(
                f"{self._watches[host]} watches of the server's health are open from this host, and "
                f"{self._watches.total()} from all; the limits are {MAX_WATCHES_PER_HOST} and {MAX_WATCHES}: close "
                "some, or call Check instead"
            )
        self._watches[host] += 1
        try:
            yield
        finally:
            self._watches[host] -= 1
            if not self._watches[host]:
                del self._watches[host]

    @contextmanager
    def _wait(self) -> Iterator[None]:
        """Count a check whose message has not arrived. Raises LimitExceeded if later ones replace it."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        self._waiting[task] = None
        if len(self._waiting) > _MAX_WAITING:
            oldest, _ = self._waiting.popitem(last=False)
            self._replaced.add(oldest)
            oldest.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._replaced:
                raise
            raise LimitExceeded("the call's message did not arrive, and too many later calls wait for theirs") from None
        finally:
            self._waiting.pop(task, None)
            self._replaced.discard(task)


def _host(peer: str) -> str:
    """The peer without its port."""
    return peer.rpartition(":")[0] or peer


async def _message(context: Context) -> Any:
    """Read a health call's only message."""
    with stall_limit(_MESSAGE_SECONDS, "the call's message did not arrive", option=""):
        message = await context.read()
    if message is grpc.aio.EOF:
        raise InvalidArgument("the call has no message; send one")
    name = getattr(message, "service", "")  # `List` takes none
    if len(name) > _MAX_NAME_LENGTH:
        raise InvalidArgument(
            f"the name of the service has {len(name)} characters; send at most {_MAX_NAME_LENGTH} characters"
        )
    return message
