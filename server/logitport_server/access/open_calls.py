"""Calls that need no authentication: health checks. Their number, duration and messages are limited."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_server.access.stalls import stall_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.access.grpc_errors import Context

# Checks without their message. Further ones replace the oldest, so that a check with a message is answered,
# however many there are without.
_MAX_WAITING = 256
_MESSAGE_SECONDS = 5.0

_MAX_NAME_LENGTH = 256


class OpenCalls:
    """Answers the calls of all clients, authenticated or not."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[asyncio.Task[Any], None] = OrderedDict()
        self._replaced: set[asyncio.Task[Any]] = set()

    async def answer(self, handler: Any, context: Context) -> None:
        """Read the call's message and answer it.

        Raises:
            InvalidArgument: there is no message, or its name is too long.
            LimitExceeded: there are too many such calls, or the message does not arrive.
        """
        with self._wait():
            message = await read_message(context, _MESSAGE_SECONDS)
            length = len(message.service)
            if length > _MAX_NAME_LENGTH:
                raise InvalidArgument(
                    f"the name of the service has {length} characters; send at most {_MAX_NAME_LENGTH} characters"
                )
        reply = await handler.unary_unary(message, context)
        with stall_limit("the reply was not received", _MESSAGE_SECONDS):
            await context.write(reply)

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


async def read_message(context: Context, seconds: float | None = None) -> Any:
    """Read the only message of a unary call. The time limit is that of `stall_limit`."""
    with stall_limit("the call's message did not arrive", seconds):
        message = await context.read()
    if message is grpc.aio.EOF:
        raise InvalidArgument("the call has no message; send one")
    return message
