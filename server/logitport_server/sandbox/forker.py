"""In the preloaded parent: fork workers, and put the inner walls around each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from logitport_server.sandbox import linux
from logitport_server.sandbox.layers import LAYERS
from logitport_server.sandbox.nobody import become_nobody, is_open_to_nobody
from logitport_server.sandbox.plan import Plan, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.sandbox.plan import Limits

_MESSAGE_BYTES = 4096
_SETTING_UP_SECONDS = 30.0


@dataclass(frozen=True)
class SandboxedProcess:
    """A worker that stands behind its walls.

    Attributes:
        pid: its process id, for the parent's `os.waitpid`; processes outside the sandbox know it by another.
        pidfd: a handle on it, the caller's to close. It means the same in every process: sent to the server over a
            Unix socket, it can be waited for (readable once the worker has ended) and killed
            (`signal.pidfd_send_signal`).
    """

    pid: int
    pidfd: int


class WorkerForker:
    """The preloaded parent, of which there is one in a process that `launch` started.

    Make it first of all: it gives up root. Then import what workers need, let that look up in /proc what it wants to
    know of this machine, for workers have none, and fork. The process must have one thread.
    """

    def __init__(self) -> None:
        self._plan = Plan.received()
        self._layers = [layer for layer in LAYERS if layer.name not in self._plan.without]
        # Without bubblewrap, Python may lie in a folder that is closed to all but root; then root is what they stay.
        if "bubblewrap" not in self._plan.without or all(map(is_open_to_nobody, self._plan.readable)):
            become_nobody()
        if "namespaces" in self._plan.without:  # else that layer does it, once it needs them no more
            linux.drop_capabilities()
        linux.no_new_privileges()
        linux.adopt_orphans()
        linux.set_dumpable(False)
        linux.die_with_parent(signal.SIGKILL)

    def fork(self, child: Callable[[], object], limits: Limits, keep: Sequence[int] = ()) -> SandboxedProcess:
        """Start a worker: a copy of this process that puts up its walls, and then calls `child`.

        The worker has the descriptors in `keep`, and /dev/null as its standard streams; it ends when `child` returns
        or raises. It dies with this process. Its exit status is this process's to collect (`os.waitpid`).

        Raises SandboxError if a wall could not be put up; then `child` was not called.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_SETTING_UP_SECONDS)
        with ours:
            between = os.fork()
            if between == 0:
                _end_with(theirs, lambda: self._split(theirs, child, limits, keep))
            theirs.close()
            message, descriptors, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, 1)
            os.waitpid(between, 0)
            if not descriptors:
                raise SandboxError(message.decode() or "a worker ended before its walls stood")
            pid, pidfd = int(message), descriptors[0]
            ours.send(b"go")
            try:
                said = ours.recv(_MESSAGE_BYTES)
            except TimeoutError:
                said = f"its walls did not stand after {_SETTING_UP_SECONDS:.0f} s".encode()
            if said == b"ready":
                return SandboxedProcess(pid, pidfd)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(pid, 0)
            raise SandboxError(said.decode() or "a worker ended while its walls were put up")

    def _split(self, channel: socket.socket, child: Callable[[], object], limits: Limits, keep: Sequence[int]) -> None:
        """In between: a process enters a new pid namespace only by being born into it."""
        for layer in self._layers:
            layer.split(self._plan)
        worker = os.fork()
        if worker == 0:
            _end_with(channel, lambda: self._become_worker(channel, child, limits, keep))
        socket.send_fds(channel, [str(worker).encode()], [os.pidfd_open(worker)])

    def _become_worker(
        self, channel: socket.socket, child: Callable[[], object], limits: Limits, keep: Sequence[int]
    ) -> None:
        channel.recv(_MESSAGE_BYTES)  # once the process in between has ended, the parent's death is the one to die of
        linux.die_with_parent(signal.SIGKILL)
        most = os.sysconf("SC_OPEN_MAX")  # before there is a lower limit
        for layer in self._layers:
            layer.apply(self._plan, limits)
        _close_descriptors({*keep, channel.fileno()}, most)
        channel.send(b"ready")
        channel.close()
        child()


def _end_with(channel: socket.socket, call: Callable[[], None]) -> NoReturn:
    """Run the call, tell the parent why it raised if it did, and end."""
    status = 1
    try:
        call()
        status = 0
    except Exception as error:  # noqa: BLE001 - what fails here is told, whatever it is
        with contextlib.suppress(OSError):
            channel.send(f"{type(error).__name__}: {error}".encode()[:_MESSAGE_BYTES])
    finally:
        os._exit(status)


def _close_descriptors(kept: set[int], most: int) -> None:
    """Close all below `most` but these, with /dev/null as the three standard streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    first = 3
    for descriptor in sorted(descriptor for descriptor in kept if descriptor > 2):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, most)
