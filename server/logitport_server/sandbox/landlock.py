"""Files once more, by the kernel's own list, for what the layers before it let through."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from typing import TYPE_CHECKING

from logitport_server.sandbox.layer import Layer

if TYPE_CHECKING:
    from logitport_server.sandbox.plan import Limits, Plan

with contextlib.suppress(ImportError):  # `missing` says so
    import landlock
    import landlock.plumbing

_PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - what the namespaces layer has made the worker's own
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# From these versions on Landlock can deny TCP (4), and signals and abstract sockets beyond the worker (6):
# LANDLOCK_ACCESS_NET_BIND_TCP | _CONNECT_TCP, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | _SIGNAL.
_TCP_VERSION, _TCP = 4, 0b11
_SCOPES_VERSION, _SCOPES = 6, 0b11


class Landlock(Layer):
    """landlock(7), by way of the package of that name."""

    name = "landlock"
    does = (
        "no file but Python's own; from Linux 6.7 on no TCP, "
        "from 6.12 on no signal and no abstract socket beyond the worker"
    )

    def missing(self) -> str | None:
        if importlib.util.find_spec("landlock") is None:
            return "there is no package landlock; install logitport[server] on Linux"
        try:
            _version()
        except OSError as error:
            return f"{error.strerror}; it needs Linux 5.13, built with Landlock and started with it in lsm="
        return None

    def apply(self, plan: Plan, limits: Limits) -> None:
        del limits
        version = _version()
        access = landlock.FSAccess
        read_file, read_folder = access.READ_FILE, access.READ_FILE | access.READ_DIR
        use_device = read_file | access.WRITE_FILE
        rules = landlock.Ruleset()
        for path in plan.readable:
            rules.allow(path, rules=read_folder if os.path.isdir(path) else read_file)
        rules.allow(*_DEVICES, rules=use_device)
        if plan.devices:
            rules.allow(*plan.devices, rules=use_device | (access.IOCTL_DEV & access.all_file()))
            # The CUDA driver reads it, and ends if it cannot name its threads there.
            rules.allow("/proc", rules=read_folder | access.WRITE_FILE)
        if "namespaces" not in plan.without:
            rules.allow(*_PRIVATE, rules=access.all() & ~(access.EXECUTE | access.MAKE_CHAR | access.MAKE_BLOCK))
        rules.apply()
        if version >= _TCP_VERSION:
            _deny_what_is_no_file(version)


def _version() -> int:
    """The kernel's version of Landlock. Raises OSError where it has none."""
    ctypes.set_errno(0)  # the package takes what an earlier call left there for a failure of its own
    return int(landlock.landlock_abi_version())


def _deny_what_is_no_file(version: int) -> None:
    """A second domain, for rights that the package does not know of."""

    class Attributes(landlock.plumbing.RulesetAttr):  # type: ignore[misc]
        _fields_ = (("handled_access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))

    attributes, size = Attributes(0, _TCP, _SCOPES), ctypes.sizeof(Attributes)
    if version < _SCOPES_VERSION:
        size -= ctypes.sizeof(ctypes.c_uint64)  # older kernels end the structure before it
    ruleset = landlock.plumbing.get_create_ruleset()(ctypes.byref(attributes), size, 0)
    landlock.plumbing.get_restrict_self()(ruleset, 0)
    os.close(ruleset)
