"""A process's link to the front door: calls with answers, messages without, and handlers of what arrives."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.errors import LogitportError, ServerUnavailable, from_proto, to_proto
from logitport_proto import common_pb2
from logitport_server.principal_process.message import Done, Failed, Message
from logitport_session.resources import defects
from logitport_session.resources import descriptors as descriptors_of_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.principal_process.channel import Channel

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05


class Answer(NamedTuple):
    """The answer to a call: the message, and the descriptors that came with it, which the caller closes."""

    message: Any
    descriptors: list[int]


class Link:
    """The link. Any thread may call and post; `run` belongs to one thread, which runs the handlers.

    Args:
        channel: the socket to the front door.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._calls: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._handlers: dict[type[Message], Callable[[Any, list[int]], object]] = {}
        self._is_closed = False

    def handle(self, kind: type[Message], handler: Callable[[Any, list[int]], object]) -> None:
        """Call this for each message of a type, with its descriptors, which it closes or keeps.

        The handler runs on the thread of `run`: it must neither wait nor `call`. For a message that is a call of the
        front door, it returns the answer; None means `Done`. It may raise LogitportError.
        """
        self._handlers[kind] = handler

    def call(self, message: Message, descriptors: Sequence[int] = (), seconds: float | None = None) -> Answer:
        """Send a call, and wait for its answer; not on the thread of `run`.

        Raises:
            LogitportError: the front door has refused it.
            ServerUnavailable: the front door has ended.
            TimeoutError: the answer has not arrived within `seconds`.
        """
        return self.begin(message, descriptors).result(seconds)

    def begin(self, message: Message, descriptors: Sequence[int] = ()) -> Future[Answer]:
        """Send a call without waiting for its answer. The future raises as `call`."""
        answer: Future[Answer] = Future()
        with self._lock:
            message.call = next(self._numbers)
            if self._is_closed:
                answer.set_exception(_ended())
                return answer
            self._calls[message.call] = answer
        try:
            self._channel.send(message, descriptors)
        except OSError as error:
            with self._lock:
                self._calls.pop(message.call, None)
            if not answer.done():
                answer.set_exception(error if descriptors_of_process.is_shortage(error) else _ended())
        return answer

    def post(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message that has no answer. Does nothing if the front door has ended."""
        try:
            self._channel.send(message, descriptors)
        except OSError:
            logger.debug("the front door has ended", exc_info=True)

    def run(self) -> None:
        """Handle messages until the front door closes its end. Raises ChannelError."""
        try:
            while (received := self._receive()) is not None:
                self._handle(*received)
        finally:
            with self._lock:
                self._is_closed = True
                calls, self._calls = self._calls, {}
            for call in calls.values():
                call.set_exception(_ended())

    def _receive(self) -> tuple[Message, list[int]] | None:
        while True:
            try:
                return self._channel.receive()
            except MemoryError:  # sessions use all that the process may have; the channel keeps what it has received
                time.sleep(_PAUSE_SECONDS)

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            with self._lock:
                call = self._calls.pop(message.call, None)
            if call is None:
                for descriptor in descriptors:
                    os.close(descriptor)
            elif isinstance(message, Failed):
                call.set_exception(from_proto(common_pb2.Error.FromString(message.error)))
            else:
                call.set_result(Answer(message, descriptors))
            return
        answer: Any
        try:
            answer = handler(message, descriptors) or Done()
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = failed(error, message)
        if message.call:
            answer.call = message.call
            self.post(answer)


def failed(error: Exception, message: Message) -> Failed:
    """Return the answer to a message that has caused this error. An unexpected error is logged."""
    if not isinstance(error, LogitportError):
        error = defects.to_error(error, type(message).__name__)
    return Failed(error=to_proto(error).SerializeToString())


def _ended() -> ServerUnavailable:
    return ServerUnavailable("the server is shutting down; open a session on another one")
