"""The server's end of one worker process: posts calls to it, and reads their replies."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import LimitExceeded
from logitport.system.frame_limits import MAX_WORKER_MESSAGE_BYTES
from logitport_server.lifecycle.pidfd import describe_end, process_id_of, send_signal
from logitport_server.worker import messages, packing, stack
from logitport_session.trust.isolation import STACK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

# How long to wait for the end of a worker that has closed its connection. The kernel closes it before the process ends,
# which may lose the CPU in between. A worker that lives on delays the step of its caller by this time.
_END_MILLISECONDS = 200
# How long to wait for the zygote's report of the exit status of a worker that has ended.
_STATUS_TIMEOUT_SECONDS = 0.5
# How much to read from one worker before another one is read.
_MAX_READ_BYTES = 4 << 20
_MAX_STACK_BYTES = 64 << 10


class WorkerGone(Exception):
    """The process has ended, or violated the protocol. The message is a predicate, such as "ended with status 1"."""


class ZygoteGone(WorkerGone):
    """The zygote has ended, and the worker with it. That is not the fault of the processor that was called."""


class Received(NamedTuple):
    """The reply to the oldest unanswered call."""

    reply: messages.Reply
    columns: list[memoryview]


class WorkerProcess:
    """A forked worker. It answers calls in the order of posting. No method blocks for the process.

    Attributes:
        process_id: its id; 0 if it is not visible here.
        holds_gpu: whether it has the device nodes of a GPU.
        uses_gpu: whether it can use them, as far as is known.
        waited_seconds: how long the server has waited for the process since its last reply. The time that the server
            spends on other work does not count.
        quick: keys of the processors that it has loaded, and that are instantiated again in little time.
        kept: keys of the processors with an instance here that a session has released.
    """

    def __init__(
        self, connection: socket.socket, pidfd: int, ended: Future[int | None], *, holds_gpu: bool = False
    ) -> None:
        self.holds_gpu = self.uses_gpu = holds_gpu
        self._connection = connection
        self._connection.setblocking(False)
        self._pidfd = pidfd
        self.process_id = process_id_of(pidfd)
        self._ended = ended
        self._killed = False
        self.waited_seconds = 0.0
        self._stack_until = 0.0  # time.monotonic() until which its stack may arrive; 0 if none was requested
        self.quick: set[str] = set()
        self.kept: set[str] = set()
        self._posted = 0
        # Of each call without a reply.
        self._limits: deque[packing.ReplyLimits] = deque()
        # Packets, or the rest of one, with the descriptors that travel with its first byte.
        self._outgoing: deque[tuple[bytes | memoryview, Sequence[int]]] = deque()
        self._reader = packing.Reader()
        # Describes invalid bytes that the process has sent. Kept, because valid replies before them are returned first.
        self._invalid = ""
        self._end = select.poll()
        self._end.register(pidfd, select.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended, as far as is known."""
        return not (self._ended.done() or self._end.poll(0))

    def post(self, call: messages.WorkerCall, columns: Sequence[bytes], descriptors: Sequence[int] = ()) -> None:
        """Queue a call. `flush` or `pump` writes it. Raises LimitExceeded if its message is too large."""
        message = messages.encode(call)
        if len(message) > MAX_WORKER_MESSAGE_BYTES:
            raise LimitExceeded(
                f"a call takes {len(message)} bytes, the limit is {MAX_WORKER_MESSAGE_BYTES}: use fewer rows or drafts"
            )
        self._posted += 1
        self._limits.append(packing.reply_limits(call, columns))
        self._outgoing.append((packing.pack(self._posted, message, columns), descriptors))

    def flush(self) -> None:
        """Write as many calls as the socket takes. Raises WorkerGone if the process has ended."""
        try:
            self._write()
        except OSError as error:
            raise self._gone() from error

    def pump(self) -> list[Received]:
        """Return the replies that have arrived. Without any, write as many calls as the socket takes.

        Raises:
            WorkerGone: the process has ended, or sent something invalid. Valid replies before that are returned first.
        """
        try:
            is_open = self._read()
        except OSError:
            is_open = False
        received = [] if self._invalid else self._replies()
        if received:
            return received
        if self._invalid:
            raise WorkerGone(self._invalid)
        if not is_open:
            raise self._gone()
        self.flush()
        return []

    def request_stack(self) -> None:
        """Let the process write where it is. It must be killed after that, because no reply can follow."""
        if not self._stack_until:
            self._stack_until = time.monotonic() + STACK_SECONDS
            send_signal(self._pidfd, stack.SIGNAL)

    def stack(self) -> list[stack.StackFrame]:
        """Return the stack frames of the processor in the running call, innermost first; none if they do not arrive.

        Waits 0.1 s at most since the first `request_stack`. The process is not trusted, so they may be wrong.
        """
        self.request_stack()
        data = bytearray()
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        with suppress(OSError):
            while not stack.is_complete(data) and len(data) < _MAX_STACK_BYTES:
                seconds = self._stack_until - time.monotonic()
                if seconds <= 0 or not poll.poll(seconds * 1000):
                    break
                received = self._connection.recv(_MAX_STACK_BYTES)
                if not received:
                    break
                data += received
        return stack.frames_in(data)

    def kill(self) -> None:
        """Kill the process and all that it has started. Idempotent."""
        self._killed = True
        send_signal(self._pidfd)

    def close(self) -> None:
        """Kill the process and close its descriptors. No method may be called afterwards."""
        self.kill()
        self._connection.close()
        os.close(self._pidfd)

    def register(self, poll: select.poll) -> tuple[int, int]:
        """Register the descriptors to wait for, or register them again after a change. Returns them."""
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        poll.register(self._pidfd, select.POLLIN)
        return self._connection.fileno(), self._pidfd

    def _write(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing.popleft()
            if not descriptors and self._outgoing and not self._outgoing[0][1]:
                data = self._joined(data)
            try:
                if descriptors:
                    sent = socket.send_fds(self._connection, [data], descriptors)
                else:
                    sent = self._connection.send(data)
            except BlockingIOError:
                self._outgoing.appendleft((data, descriptors))
                return
            if sent < len(data):
                self._outgoing.appendleft((memoryview(data)[sent:], ()))

    def _joined(self, first: bytes | memoryview) -> bytes:
        """Join the packets up to the next one with descriptors: one system call writes them all."""
        parts = [first]
        while self._outgoing and not self._outgoing[0][1]:
            parts.append(self._outgoing.popleft()[0])
        return b"".join(parts)

    def _read(self) -> bool:
        """Read what has arrived. Returns False if the process has ended and everything was read."""
        num_bytes = 0
        while num_bytes < _MAX_READ_BYTES:
            try:
                data = self._connection.recv(packing.READ_BYTES)
            except BlockingIOError:
                # A process that it has started may hold the connection open.
                return not self._end.poll(0)
            if not data:
                return False
            self._reader.feed(data)
            num_bytes += len(data)
            if len(data) < packing.READ_BYTES:
                return True
        return True

    def _replies(self) -> list[Received]:
        """Return the complete replies. Sets `_invalid` if something else follows them."""
        received: list[Received] = []
        try:
            while self._limits:
                limits = self._limits[0]
                packet = self._reader.next(limits.column_bytes, limits.message_bytes)
                if packet is None:
                    break
                if packet.call != self._posted - len(self._limits) + 1:
                    self._invalid = "sent a reply with the number of another call"
                    return received
                received.append(Received(packing.decode_reply(packet.message), packet.columns))
                self._limits.popleft()
        except packing.BadPacket as error:
            self._invalid = f"sent an invalid packet: {error}"
        if not self._limits and len(self._reader):
            self._invalid = f"sent {len(self._reader)} bytes that belong to no reply"
        return received

    def _gone(self) -> WorkerGone:
        """Return how the process ended."""
        if self._end.poll(_END_MILLISECONDS):
            wait([self._ended], _STATUS_TIMEOUT_SECONDS)
        if not self._ended.done():
            return WorkerGone("closed its connection to the server")
        status = self._ended.result()
        if status is None:
            return ZygoteGone("ended with the process that forks workers")
        cause = ", most likely for memory" if status == -signal.SIGKILL and not self._killed else ""
        return WorkerGone(f"{describe_end(status)}{cause}")


class ProcessPoll:
    """Waits for several processes. Each is registered once, not at every wait: there may be many of both."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors: dict[WorkerProcess, tuple[int, int]] = {}
        self._processes: dict[int, WorkerProcess] = {}
        # Processes that were pumped, and may have nothing more to write.
        self._pumped: list[WorkerProcess] = []

    def add(self, process: WorkerProcess) -> None:
        """Wait for this process, too."""
        descriptors = self._descriptors[process] = process.register(self._poll)
        self._processes.update(dict.fromkeys(descriptors, process))

    def remove(self, process: WorkerProcess) -> None:
        """No longer wait for a process, which may have been closed."""
        for descriptor in self._descriptors.pop(process):
            self._poll.unregister(descriptor)
            del self._processes[descriptor]

    def wait(self, seconds: float) -> list[WorkerProcess]:
        """Wait until processes can be pumped. Returns these, which must be pumped or removed; none after `seconds`."""
        for process in self._pumped:
            if process in self._descriptors:
                process.register(self._poll)
        began = time.monotonic()
        ready = self._poll.poll(max(0.0, seconds) * 1000)
        waited = time.monotonic() - began
        for process in self._descriptors:
            process.waited_seconds += waited
        pumped: dict[WorkerProcess, None] = {}  # both descriptors of a process may be ready
        for descriptor, _ in ready:
            pumped[self._processes[descriptor]] = None
        self._pumped = [*pumped]
        return self._pumped
