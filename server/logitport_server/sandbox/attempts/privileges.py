"""Attempts to gain privileges, and to reach parts of the kernel that no processor needs."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from logitport_server.sandbox import linux
from logitport_server.sandbox.attempts.base import first_that_works, stopped_by

if TYPE_CHECKING:
    from logitport_server.sandbox.attempts.base import Targets

# Their numbers are the same on every architecture. No processor needs them.
_RARE_CALLS = {"io_uring_setup": 425, "fsopen": 430, "pidfd_open": 434}

_libc = ctypes.CDLL(None, use_errno=True)


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
