"""In the preloaded parent: forks workers, and applies the inner layers to each."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

from logitport_sandbox import linux, priority, users
from logitport_sandbox.layers import LAYERS
from logitport_sandbox.plan import SandboxError, SandboxPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_sandbox.plan import WorkerLimits

_MESSAGE_BYTES = 4096
_SETTING_UP_SECONDS = 30.0

# Users to try for one worker: those of other servers may be taken, and a machine without free processes has none.
_MAX_USERS = 16
_TAKEN = b"taken"


@dataclass(frozen=True)
class SandboxedProcess:
    """A worker with all layers applied.

    Attributes:
        pid: its process id in the parent, for `os.waitpid`; outside the sandbox the number is different.
        pidfd: a descriptor of the process, which the caller closes. It is valid in every process: the server, which
            receives it over a Unix socket, can wait for it (readable once the worker has ended) and kill the worker
            (`signal.pidfd_send_signal`).
    """

    pid: int
    pidfd: int


class WorkerForker:
    """Forks workers in a process that `launch` started; one for each such process.

    Create it first: that drops root. Then import what workers need, and fork. Imports that read /proc must happen
    before the fork, because workers have no /proc. The process must have one thread.

    Raises SandboxError if only root can read what workers need.
    """

    def __init__(self) -> None:
        self._plan = SandboxPlan.received()
        self._layers = [layer for layer in LAYERS if layer.name not in self._plan.without]
        os.chdir("/")  # a relative path from the server's folder would pass by the modes of those above it
        self._users = users.Assigned()
        if self._plan.own_users:
            users.enter_zygote(self._plan.readable)
        elif "namespaces" in self._plan.without:  # that layer needs them, and drops them itself
            linux.drop_capabilities()
        linux.no_new_privileges()
        linux.adopt_orphans()
        linux.set_dumpable(False)
        linux.die_with_parent(signal.SIGKILL)

    def fork(self, child: Callable[[], object], limits: WorkerLimits, keep: Sequence[int] = ()) -> SandboxedProcess:
        """Start a worker: a copy of this process that applies its layers, and then calls `child`.

        The worker has the descriptors in `keep`, and /dev/null as its standard streams; it ends when `child` returns
        or raises. It dies with this process, which must collect its exit status (`os.waitpid`).

        Raises SandboxError if a layer could not be applied, OSError if there is no process or descriptor for it; then
        `child` was not called.
        """
        if not self._plan.own_users:
            return self._fork(child, limits, keep, user=None)
        for user in islice(self._users.free(), _MAX_USERS):
            with contextlib.suppress(BlockingIOError):
                return self._fork(child, limits, keep, user)
        raise SandboxError(
            f"of the users {users.WORKERS[0]} to {users.WORKERS[-1]}, one for each worker, none was free"
        )

    def _fork(
        self, child: Callable[[], object], limits: WorkerLimits, keep: Sequence[int], user: int | None
    ) -> SandboxedProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                ours.settimeout(_SETTING_UP_SECONDS)
                intermediate = os.fork()
                if intermediate == 0:
                    ours.close()  # with it, the worker would not notice the end of this process
                    _end_with(theirs, lambda: self._split(theirs, child, limits, keep, user))
            message, descriptors, flags, _ = socket.recv_fds(ours, _MESSAGE_BYTES, 1)
            os.waitpid(intermediate, 0)
            if flags & socket.MSG_CTRUNC:  # the worker ends with the channel
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if message == _TAKEN:
                raise BlockingIOError(f"user {user} has another process")
            if not descriptors:
                raise SandboxError(message.decode() or "a worker ended before its layers were applied")
            pid, pidfd = int(message), descriptors[0]
            if user is not None:
                self._users.assign(user, pid)
            ours.send(b"go")
            try:
                reply = ours.recv(_MESSAGE_BYTES)
            except TimeoutError:
                reply = f"its layers were not applied within {_SETTING_UP_SECONDS:.0f} s".encode()
            if reply == b"ready":
                return SandboxedProcess(pid, pidfd)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(pid, 0)
            raise SandboxError(reply.decode() or "a worker ended while its layers were applied")

    def _split(
        self,
        channel: socket.socket,
        child: Callable[[], object],
        limits: WorkerLimits,
        keep: Sequence[int],
        user: int | None,
    ) -> None:
        """In an intermediate process: only a child of the process that unshares enters a new pid namespace."""
        if user is not None:
            users.enter_worker(user)
        for layer in self._layers:
            layer.split(self._plan)
        try:
            worker = os.fork() if user is None else users.fork_alone()
        except BlockingIOError:
            channel.send(_TAKEN)
            return
        if worker == 0:
            _end_with(channel, lambda: self._enter_sandbox(channel, child, limits, keep))
        socket.send_fds(channel, [str(worker).encode()], [os.pidfd_open(worker)])

    def _enter_sandbox(
        self, channel: socket.socket, child: Callable[[], object], limits: WorkerLimits, keep: Sequence[int]
    ) -> None:
        # Wait until the intermediate process has ended: the parent is then the preloaded one.
        if not channel.recv(_MESSAGE_BYTES):
            raise SandboxError("the process that forks workers has ended")
        linux.die_with_parent(signal.SIGKILL)
        priority.begin_session()
        priority.lower()
        max_descriptors = os.sysconf("SC_OPEN_MAX")  # before a layer lowers the limit
        kept = {*keep, channel.fileno()}
        # The parent has one for each worker: with more than the limit, the layers after it could open no file.
        _close_others(kept, max_descriptors)
        for layer in self._layers:
            layer.apply(self._plan, limits)
        _use_null_streams()
        _close_others(kept, max_descriptors)
        channel.send(b"ready")
        channel.close()
        child()


def _end_with(channel: socket.socket, call: Callable[[], None]) -> NoReturn:
    """Run the call, send the parent the exception if there is one, and exit."""
    status = 1
    try:
        call()
        status = 0
    except Exception as error:  # noqa: BLE001 - the parent reports any failure
        with contextlib.suppress(OSError):
            channel.send(f"{type(error).__name__}: {error}".encode()[:_MESSAGE_BYTES])
    finally:
        os._exit(status)


def _use_null_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)


def _close_others(kept: set[int], end: int) -> None:
    """Close all descriptors below `end` except these and the three standard streams."""
    first = 3
    for descriptor in sorted(descriptor for descriptor in kept if descriptor > 2):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, end)
