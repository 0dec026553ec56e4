"""The server's end of a zygote: a process of one Python that has everything imported, and forks workers on demand."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from logitport_server.worker import frames

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 1 << 16
_READY_SECONDS = 180.0
# How long to wait for the zygote to tell how a worker ended, which it has seen to end.
_BURIAL_SECONDS = 0.5
# What one reply may bring, in bytes: biases of many rows over a large vocabulary fit in.
_LONGEST_REPLY = 64 << 20


class WorkerGone(Exception):
    """The process has ended, or does not speak our language; the message says how, as in "it …"."""


class NoAnswer(Exception):
    """The process did not answer in time."""


class WorkerProcess:
    """A forked worker. One call at a time.

    Attributes:
        holds_gpu: whether it was given the device nodes of a GPU.
        uses_gpu: whether it can use them, as far as is known.
    """

    def __init__(self, connection: socket.socket, pidfd: int, ended: Future[int], *, holds_gpu: bool = False) -> None:
        self.holds_gpu = self.uses_gpu = holds_gpu
        self._connection = connection
        self._connection.setblocking(False)
        self._pidfd = pidfd
        self._ended = ended
        self._killed = False
        self._calls = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(pidfd, select.POLLIN)
        self._deadline = 0.0

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return not self._ended.done()

    def send(
        self, header: dict[str, Any], columns: Sequence[bytes], descriptors: Sequence[int], seconds: float
    ) -> None:
        """Begin a call. Raises WorkerGone, NoAnswer."""
        self._calls += 1
        self._deadline = time.monotonic() + seconds
        frame = memoryview(frames.pack({**header, "call": self._calls}, columns))
        try:
            if descriptors:
                frame = frame[socket.send_fds(self._connection, [frame], descriptors) :]
            while frame:
                try:
                    frame = frame[self._connection.send(frame) :]
                except BlockingIOError:
                    self._await(select.POLLOUT)
        except OSError as error:
            raise WorkerGone(self._how_it_ended()) from error

    def receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        """End a call, within the seconds that it was begun with. Raises WorkerGone, NoAnswer."""
        try:
            header, columns = frames.read(self._receive, _LONGEST_REPLY)
        except frames.BadFrame as error:
            raise WorkerGone(f"sent what is no frame of its own: {error}") from error
        if header.get("call") != self._calls:
            raise WorkerGone("answered another call than the one that it was asked")
        return header, columns

    def kill(self) -> None:
        """End it, and all that it has started. May be called twice."""
        self._killed = True
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and give up its descriptors; nothing may be called afterwards."""
        self.kill()
        self._connection.close()
        os.close(self._pidfd)

    def _receive(self, most: int) -> bytes:
        while True:
            try:
                octets = self._connection.recv(most)
            except BlockingIOError:
                self._await(select.POLLIN)
            except OSError as error:
                raise WorkerGone(self._how_it_ended()) from error
            else:
                if not octets:
                    raise WorkerGone(self._how_it_ended())
                return octets

    def _await(self, event: int) -> None:
        """Until the socket is ready; or raise."""
        self._poll.modify(self._connection, event)
        ready = self._poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000)
        if not ready:
            raise NoAnswer
        if all(descriptor == self._pidfd for descriptor, _ in ready):
            raise WorkerGone(self._how_it_ended())

    def _how_it_ended(self) -> str:
        wait([self._ended], _BURIAL_SECONDS)
        if not self._ended.done():
            return "closed its connection to the server"
        status = self._ended.result()
        if status >= 0:
            return f"ended with status {status}"
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        return f"was killed by {name}" + (", most likely for memory" if name == "SIGKILL" and not self._killed else "")


class Zygote:
    """Launched when it is made; `ready` waits until it can fork.

    Attributes:
        python: its minor version, such as "3.11".
        holds_gpu: whether its workers are given the device nodes of a GPU.
    """

    def __init__(
        self,
        python: str,
        launch: Callable[[int], subprocess.Popen[bytes]],
        limits: dict[str, Any],
        *,
        holds_gpu: bool = False,
    ) -> None:
        self.python = python
        self.holds_gpu = holds_gpu
        self._limits = limits
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = launch(theirs.fileno())
        self._ready: Future[None] = Future()
        self._forking: dict[int, tuple[socket.socket, Future[WorkerProcess]]] = {}
        self._ended: dict[int, Future[int]] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._listen, name=f"logitport-zygote-{python}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return not self._closed and self._process.poll() is None

    def ready(self) -> None:
        """Wait until everything is imported. Raises RuntimeError, which says why it is not."""
        wait([self._ready], _READY_SECONDS)
        if not self._ready.done():
            raise RuntimeError(f"it was not ready within {_READY_SECONDS:.0f} s")
        self._ready.result()

    def fork(self) -> Future[WorkerProcess]:
        """Ask for a worker; whoever needs it waits. The result may raise WorkerGone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        forked: Future[WorkerProcess] = Future()
        with theirs, self._lock:
            self._last += 1
            self._forking[self._last] = ours, forked
            self._ended[self._last] = Future()
            message = orjson.dumps({"worker": self._last, "limits": self._limits})
            try:
                socket.send_fds(self._control, [message], [theirs.fileno()])
            except OSError as error:
                del self._forking[self._last], self._ended[self._last]
                ours.close()
                forked.set_exception(WorkerGone(f"could not be forked: {error}"))
        return forked

    def close(self) -> None:
        """End it, and every worker with it."""
        self._closed = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        with self._control:
            while True:
                try:
                    octets, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST_MESSAGE, 1)
                except OSError:
                    octets, descriptors = b"", []
                if not octets:
                    break
                self._take(orjson.loads(octets), descriptors)
        self._bury_all()

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "ready" in message:
            self._ready.set_result(None)
        elif "forked" in message:
            with self._lock:
                ours, forked = self._forking.pop(message["forked"])
                ended = self._ended[message["forked"]]
            forked.set_result(WorkerProcess(ours, descriptors[0], ended, holds_gpu=self.holds_gpu))
        elif "failed" in message:
            with self._lock:
                ours, forked = self._forking.pop(message["failed"])
                del self._ended[message["failed"]]
            ours.close()
            forked.set_exception(WorkerGone(f"could not be forked: {message['reason']}"))
        elif "ended" in message:
            with self._lock:
                self._ended.pop(message["ended"]).set_result(message["status"])

    def _bury_all(self) -> None:
        if not self._closed:
            logger.error("the parent of the workers of Python %s has ended, and they with it", self.python)
        gone = WorkerGone("could not be forked: the parent of the workers has ended")
        with self._lock:
            forking, ended = list(self._forking.values()), list(self._ended.values())
            self._forking.clear()
            self._ended.clear()
        for ours, forked in forking:
            ours.close()
            forked.set_exception(gone)
        for future in ended:
            future.set_result(-signal.SIGKILL)
        if not self._ready.done():
            status = self._process.wait()
            self._ready.set_exception(RuntimeError(f"it ended with status {status} while it was starting"))
