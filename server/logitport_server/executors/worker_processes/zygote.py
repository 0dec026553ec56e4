"""The server's end of a zygote: a preloaded process of one Python that forks workers on request."""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logitport.system.frame_limits import MAX_PACKET_BYTES
from logitport_server.executors.worker_processes.worker_process import WorkerGone, WorkerProcess, ZygoteGone
from logitport_server.lifecycle.pidfd import describe_end, process_id_of
from logitport_server.worker import messages
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logitport_sandbox import WorkerLimits
    from logitport_sandbox.cgroups import WorkerCgroups
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)

_READY_TIMEOUT_SECONDS = 180.0
# For the exit status of a zygote that has closed its socket.
_END_SECONDS = 0.5


class StartedWorker(NamedTuple):
    """A worker that was forked. The descriptors belong to its receiver.

    Attributes:
        connection: the server's end of its socket.
        pidfd: a descriptor of the process.
        ended: its exit status; None when it has ended with its zygote.
        holds_gpu: whether it has the device nodes of a GPU.
    """

    connection: socket.socket
    pidfd: int
    ended: Future[int | None]
    holds_gpu: bool


class Zygote:
    """Requests workers from a started zygote; `ready` waits until it can fork.

    Args:
        started: the process and its control socket, which this object then owns.
        holds_gpu: whether the workers have the device nodes of a GPU.
        cgroups: where each worker gets a cgroup of its own, if that is permitted.
        on_end: called once, when the process has ended without `close` after it was ready.
    """

    def __init__(
        self,
        python: str,
        started: StartedZygote,
        limits: WorkerLimits,
        *,
        holds_gpu: bool = False,
        cgroups: WorkerCgroups | None = None,
        on_end: Callable[[Zygote], object] = lambda _: None,
    ) -> None:
        self.python = python
        self.holds_gpu = holds_gpu
        self._limits = limits
        self._cgroups = cgroups
        # By the number of the worker.
        self._cgroup_of: dict[int, Path] = {}
        self._on_end = on_end
        self._control, self._process = started.control, started.process
        self._ready: Future[None] = Future()
        # By the number of the worker.
        self._forking: dict[int, tuple[socket.socket, Future[StartedWorker]]] = {}
        self._ended: dict[int, Future[int | None]] = {}
        self._last_worker = 0
        self._lock = threading.Lock()
        self._closed = self._gone = False
        threading.Thread(target=self._listen, name=f"logitport-zygote-{python}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return not (self._closed or self._gone) and self._process.poll() is None

    def ready(self) -> None:
        """Wait until its imports are done. Raises RuntimeError with the reason if they fail."""
        wait([self._ready], _READY_TIMEOUT_SECONDS)
        if not self._ready.done():
            raise RuntimeError(f"it was not ready within {_READY_TIMEOUT_SECONDS:.0f} s")
        self._ready.result()

    def fork(self) -> Future[WorkerProcess]:
        """Request a worker without waiting for it. The future may raise WorkerGone, LimitExceeded.

        Raises OSError if the server has no descriptor for its connection.
        """
        forked: Future[WorkerProcess] = Future()
        self.start_worker().add_done_callback(lambda started: _complete(forked, started))
        return forked

    def start_worker(self) -> Future[StartedWorker]:
        """Do the same as `fork`, for a worker that another process calls."""
        server_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        forked: Future[StartedWorker] = Future()
        with worker_end, self._lock:
            self._last_worker += 1
            worker = self._last_worker
            self._forking[worker] = server_end, forked
            self._ended[worker] = Future()
            try:
                request = messages.encode(messages.Fork(worker, self._limits))
                # `_listen` needs this lock: never wait for room in the socket.
                # `socket.send_fds` ignores its flags.
                rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", worker_end.fileno())
                self._control.sendmsg([request], [rights], socket.MSG_DONTWAIT)
            except OSError as error:
                del self._forking[worker], self._ended[worker]
                server_end.close()
                forked.set_exception(WorkerGone(f"could not be forked: {error}"))
        return forked

    def close(self) -> None:
        """Kill the process. Its workers end with it."""
        self._closed = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        with self._control:
            while True:
                try:
                    data, received, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 1)
                except OSError:
                    data, received = b"", []
                if not data:
                    break
                self._handle(messages.decode_event(data), received)
        self._handle_end()

    def _handle(self, event: messages.ZygoteEvent, received: list[int]) -> None:
        if isinstance(event, messages.Ready):
            self._ready.set_result(None)
        elif isinstance(event, messages.Forked):
            with self._lock:
                connection, forked = self._forking.pop(event.worker)
                ended = self._ended[event.worker]
            if not received:  # the kernel drops what it has no number for; the worker ends with its connection
                connection.close()
                forked.set_exception(descriptors.shortage())
                return
            if self._cgroups is not None and (cgroup := self._cgroups.add(process_id_of(received[0]), self._limits)):
                self._cgroup_of[event.worker] = cgroup
            forked.set_result(StartedWorker(connection, received[0], ended, self.holds_gpu))
        elif isinstance(event, messages.ForkFailed):
            with self._lock:
                connection, forked = self._forking.pop(event.worker)
                del self._ended[event.worker]
            connection.close()
            gone = WorkerGone(f"could not be forked: {event.reason}")
            forked.set_exception(descriptors.shortage() if event.lacks_descriptors else gone)
        else:
            with self._lock:
                self._ended.pop(event.worker).set_result(event.status)
            self._remove_cgroup(event.worker)

    def _remove_cgroup(self, worker: int) -> None:
        if self._cgroups is not None and worker in self._cgroup_of:
            self._cgroups.remove(self._cgroup_of.pop(worker))

    def _handle_end(self) -> None:
        """Complete all futures: the workers have ended with their zygote."""
        self._gone = True
        gone = ZygoteGone("could not be forked: the zygote has ended")
        with self._lock:
            forking, ended = list(self._forking.values()), list(self._ended.values())
            self._forking.clear()
            self._ended.clear()
        for connection, forked in forking:
            connection.close()
            forked.set_exception(gone)
        for future in ended:
            future.set_result(None)
        for worker in tuple(self._cgroup_of):
            self._remove_cgroup(worker)
        if not self._ready.done():
            ending = _ending(self._process.wait())
            self._log_end(
                f"{ending} during start-up; lines before may have the reason. The next call launches it again"
            )
            self._ready.set_exception(RuntimeError(f"it {ending} during start-up"))
        elif not self._closed:
            with suppress(subprocess.TimeoutExpired):  # bubblewrap around it ends a moment later
                self._process.wait(_END_SECONDS)
            self._process.kill()
            self._log_end(f"{_ending(self._process.wait())}, and all its workers with it; it is launched again")
            self._on_end(self)

    def _log_end(self, what: str) -> None:
        if not self._closed:
            logger.error("the zygote of Python %s, which forks workers, %s", self.python, what)


def _ending(status: int) -> str:
    """Describe the end of a zygote. Bubblewrap adds 128 to the number of the signal that has ended its child."""
    return describe_end(128 - status if status > 128 else status)


def _complete(forked: Future[WorkerProcess], started: Future[StartedWorker]) -> None:
    error = started.exception()
    if error is not None:
        forked.set_exception(error)
        return
    connection, pidfd, ended, holds_gpu = started.result()
    forked.set_result(WorkerProcess(connection, pidfd, ended, holds_gpu=holds_gpu))
