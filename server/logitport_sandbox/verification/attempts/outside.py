"""Attempts to reach what is outside the worker: the network, privileges in the kernel, and other processes."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_sandbox import linux
from logitport_sandbox.verification.attempts.base import first_that_works, stopped_by

if TYPE_CHECKING:
    from logitport_sandbox.verification.attempts.base import Targets

_CONNECT_SECONDS = 5.0
# Their numbers are the same on every architecture. No processor needs them.
_RARE_CALLS = {"io_uring_setup": 425, "fsopen": 430, "pidfd_open": 434}
_PTRACE_ATTACH = 16

_libc = ctypes.CDLL(None, use_errno=True)


@stopped_by("bubblewrap", "namespaces", "landlock", "seccomp")
def _connect(targets: Targets) -> object:
    """Connect to a port of the host."""
    with socket.create_connection(("127.0.0.1", targets.port), _CONNECT_SECONDS) as connection:
        return connection.getpeername()


@stopped_by("bubblewrap", "namespaces", "landlock", "seccomp")
def _connect_abstract(targets: Targets) -> object:
    """Connect to an abstract socket of the host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{targets.abstract_socket}")
        return targets.abstract_socket


@stopped_by("seccomp")
def _open_a_socket(targets: Targets) -> object:
    """Open a socket of any kind."""
    return first_that_works(_open_and_close, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)


def _open_and_close(family: socket.AddressFamily) -> None:
    socket.socket(family, socket.SOCK_DGRAM).close()


@stopped_by("")
def _become_root(targets: Targets) -> object:
    """Become another user."""
    os.setgroups([0])
    os.setresuid(1, 1, 1)
    return os.getresuid()


@stopped_by("")
def _mount(targets: Targets) -> object:
    """Mount a file system."""
    folder = "/tmp"  # noqa: S108
    linux.mount("tmpfs", folder, "tmpfs", 0)
    return folder


@stopped_by("seccomp")
def _new_namespace(targets: Targets) -> object:
    """Gain capabilities in a namespace of its own."""
    linux.unshare(linux.CLONE_NEWUSER)
    return "a user namespace"


@stopped_by("seccomp")
def _rare_calls(targets: Targets) -> object:
    """Reach the kernel's rarer calls."""
    return first_that_works(_call, *_RARE_CALLS.items())


def _call(named: tuple[str, int]) -> str:
    """Return if the kernel checked the arguments, which are invalid; raise if it refused the call itself."""
    ctypes.set_errno(0)
    _libc.syscall(named[1], -1, None, -1)
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EACCES):
        raise OSError(ctypes.get_errno(), named[0])
    return named[0]


@stopped_by("namespaces", "landlock", "seccomp", "users")
def _signal_sibling(targets: Targets) -> object:
    """Signal another worker."""
    os.kill(targets.sibling, 0)
    return targets.sibling


@stopped_by("namespaces", "landlock", "seccomp", "users")
def _signal_parent(targets: Targets) -> object:
    """Kill the parent."""
    os.kill(targets.parent, 0)
    return targets.parent


@stopped_by("")
def _trace_sibling(targets: Targets) -> object:
    """Trace another worker."""
    if _libc.ptrace(_PTRACE_ATTACH, targets.sibling, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return targets.sibling


@stopped_by("")
def _read_siblings_memory(targets: Targets) -> object:
    """Read another worker's memory."""
    with Path(f"/proc/{targets.sibling}/mem").open("rb"):
        return targets.sibling


@stopped_by("seccomp")
def _fork(targets: Targets) -> object:
    """Start a process."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


@stopped_by("landlock", "seccomp")
def _start_a_program(targets: Targets) -> object:
    """Start a program."""
    os.set_inheritable(targets.result, True)
    program = f"import os; os.write({targets.result}, b'through: a program')"
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program])  # noqa: S606
