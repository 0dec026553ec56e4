"""The front door's end of one principal's process."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from logitport.errors import LogitportError, ServerUnavailable, from_proto
from logitport_proto import common_pb2
from logitport_server.lifecycle.pidfd import send_signal
from logitport_server.principal_process import process_messages
from logitport_server.principal_process.channel import Channel, ChannelError
from logitport_server.principal_process.link import failed
from logitport_server.principal_process.message import Done, Failed, Message

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    # Gets the process, the message, and an empty list. For a call, it returns the answer, or the answer with
    # descriptors (sent, then closed), or an awaitable of either; None means `Done`.
    Handler = Callable[["RunningProcess", Any, list[int]], Any]

logger = logging.getLogger(__name__)

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Messages that the process has not received. One that receives none has stopped.
_MAX_UNSENT = 1024
# Calls of one process that are being answered.
_MAX_ANSWERING = 256
# Before a message is sent again because no descriptor was free.
_RETRY_SECONDS = 0.1
# For a process that has closed its connection to end by itself.
_END_SECONDS = 1.0
# Messages of one process in one iteration of the event loop.
_MAX_RECEIVED = 16
# Times `_MAX_RECEIVED`: the messages that a process has sent at its end.
_MAX_LAST_RECEIVED = 16


class RunningProcess:
    """A principal's process. All methods belong to the event loop, except `post`.

    Args:
        principal: name of the principal.
        connection: the front door's end of the channel.
        pidfd: a descriptor of the process.
        lifeline: the writing end of a pipe: the kernel kills the process when it is closed.
        handlers: what to do with the messages of processes, by their type.

    Attributes:
        ended: done when the process has ended.
        status: done with its exit status, as in `subprocess.Popen`, or with None if that cannot be known.
        data: what the parts of the front door keep for the process, by their own keys.
        streams: number of its open streams.
        killed_because: why the front door has killed it; "" if it has not.
        is_busy: whether it has used most of a core lately; see `Processes`.
    """

    def __init__(
        self,
        principal: str,
        connection: socket.socket,
        pidfd: int,
        process_id: int,
        lifeline: int,
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        self.principal = principal
        self.process_id = process_id
        self.data: dict[str, Any] = {}
        self.streams = 0
        self.is_busy = False
        self.killed_because = ""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.status: asyncio.Future[int | None] = self._loop.create_future()
        self._channel = Channel(connection, process_messages.TO_FRONT_DOOR)
        self._pidfd = pidfd
        self._lifeline = lifeline
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._unsent: deque[tuple[Message, list[int]]] = deque()
        self._answering: set[asyncio.Future[Any]] = set()
        self._is_open = True
        self._was_closed = False
        self._loop.add_reader(self._channel.fileno(), self._receive)
        self._loop.add_reader(pidfd, self._end)

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been closed."""
        return self._is_open and not self.ended.done()

    @property
    def is_expected_to_end(self) -> bool:
        """Whether `close` was called before it ended."""
        return self._was_closed

    def post(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message without waiting, on any thread. The descriptors may be closed afterwards.

        Does nothing if the process has ended.
        """
        kept = [os.dup(descriptor) for descriptor in descriptors]
        if threading.get_ident() == self._thread:
            self._post(message, kept)
        else:
            self._loop.call_soon_threadsafe(self._post, message, kept)

    async def call(self, message: Message, seconds: float) -> Any:
        """Send a call. Returns its answer.

        Raises:
            LogitportError: the process has refused it, or has ended, or has not answered within these seconds.
        """
        if not self.is_running:
            raise _has_ended()
        message.call = next(self._numbers)
        answer = self._calls[message.call] = self._loop.create_future()
        try:
            self.post(message)
            return await asyncio.wait_for(answer, seconds)
        except asyncio.TimeoutError:
            raise LogitportError(f"a session's process has not answered within {seconds:g} s") from None
        finally:
            self._calls.pop(message.call, None)

    def close(self) -> None:
        """Let the process end: it does so when its end of the channel is closed."""
        self._was_closed = True
        self._close_channel()

    def _close_channel(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._channel.close()
            for _, descriptors in self._unsent:
                _close(descriptors)
            self._unsent.clear()

    def kill(self, reason: str = "the server ends") -> None:
        """Kill the process. The reason is for the log."""
        if not self.ended.done():
            self.killed_because = self.killed_because or reason
            send_signal(self._pidfd)

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used; 0 if it has ended. Source: proc_pid_stat(5)."""
        with suppress(OSError), open(f"/proc/{self.process_id}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        return 0.0

    def note_status(self, status: int | None) -> None:
        """Record its exit status, which may be known before or after its end."""
        if not self.status.done():
            self.status.set_result(status)

    def _post(self, message: Message, descriptors: list[int]) -> None:
        if not self._is_open:
            _close(descriptors)
            return
        self._unsent.append((message, descriptors))
        self._send()

    def _send(self) -> None:
        while self._unsent and self._is_open:
            message, descriptors = self._unsent[0]
            try:
                self._channel.send(message, descriptors, may_wait=False)
            except BlockingIOError:
                if len(self._unsent) > _MAX_UNSENT:
                    self._violated("does not receive its messages")
                else:
                    self._loop.add_writer(self._channel.fileno(), self._send)
                return
            except (BrokenPipeError, ConnectionResetError):  # it has ended, which `_end` handles
                logger.debug("a message was not sent", exc_info=True)
            except OSError as error:  # no descriptor, or no memory, is free
                logger.warning("a message to the process %d is sent later: %s", self.process_id, error)
                self._loop.call_later(_RETRY_SECONDS, self._send)
                return
            self._unsent.popleft()
            _close(descriptors)
        if self._is_open:
            self._loop.remove_writer(self._channel.fileno())

    def _receive(self) -> None:
        for _ in range(_MAX_RECEIVED):
            try:
                received = self._channel.receive(may_wait=False)
            except BlockingIOError:
                return
            except ChannelError as error:
                self._violated(f"has sent {error}")
                return
            if received is None:
                self._close_channel()
                # It ends now, or serves nothing any more.
                self._loop.call_later(_END_SECONDS, self.kill, "it has closed its connection and did not end")
                return
            self._handle(*received)
            if not self._is_open or len(self._answering) >= _MAX_ANSWERING:
                return

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        _close(descriptors)  # no message of a process has any
        handler = self._handlers.get(type(message))
        if handler is None:
            answer = self._calls.pop(message.call, None)
            if answer is None or answer.done():
                return
            if isinstance(message, Failed):
                try:
                    answer.set_exception(from_proto(common_pb2.Error.FromString(message.error)))
                except DecodeError:
                    self._violated("has sent an invalid error")
            else:
                answer.set_result(message)
            return
        try:
            result = handler(self, message, [])
        except Exception as error:  # noqa: BLE001 - it is the answer
            result = failed(error, message)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            self._answering.add(task)
            task.add_done_callback(lambda done: self._answered(message, done))
            if len(self._answering) >= _MAX_ANSWERING:
                self._loop.remove_reader(self._channel.fileno())  # until one is answered
        elif message.call:
            self._answer(message, result)

    def _answered(self, message: Message, done: asyncio.Future[Any]) -> None:
        if len(self._answering) >= _MAX_ANSWERING and self._is_open:
            self._loop.add_reader(self._channel.fileno(), self._receive)
        self._answering.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        result = done.result() if error is None else failed(error, message) if isinstance(error, Exception) else None
        if message.call:
            self._answer(message, result)

    def _answer(self, message: Message, result: Message | tuple[Message, Sequence[int]] | None) -> None:
        descriptors: Sequence[int] = ()
        if isinstance(result, tuple):
            result, descriptors = result
        answer = result or Done()
        answer.call = message.call
        self._post(answer, list(descriptors))

    def _violated(self, what: str) -> None:
        """Kill a process that does not keep to the protocol."""
        self._close_channel()
        self.kill(f"it {what}")

    def _end(self) -> None:
        """Release everything: the process has ended."""
        for _ in range(_MAX_LAST_RECEIVED):  # its last reports
            if self._is_open:
                self._receive()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._lifeline)
        self._close_channel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(_has_ended())
        for task in self._answering:
            task.cancel()
        self.ended.set_result(None)


def _has_ended() -> ServerUnavailable:
    return ServerUnavailable("the session's process has ended")


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
