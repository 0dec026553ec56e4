"""A second list of allowed files, which the kernel enforces if a layer before it fails.

Landlock is three system calls, which `linux.py` makes. Packages were rejected, because each worker interpreter would
need them: `landlock`, a pre-release from 2025, lacks TCP and scopes; `landlockpy` has both, in 850 lines that are
months old.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from logitport_sandbox import linux
from logitport_sandbox.layers.layer import Layer

if TYPE_CHECKING:
    from logitport_sandbox.plan import SandboxPlan, WorkerLimits

_PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - the namespaces layer makes them private
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# Rights of linux/landlock.h: LANDLOCK_ACCESS_FS_*.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

# Rights that Landlock can deny, by the version that introduced them. A kernel refuses unknown rights.
_FILES = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_TCP = {4: 0b11}  # LANDLOCK_ACCESS_NET_BIND_TCP, _CONNECT_TCP
_SCOPES = {6: 0b11}  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, _SIGNAL


class Landlock(Layer):
    """landlock(7)."""

    name = "landlock"
    does = (
        "only Python's own files; from Linux 6.7 on no TCP, "
        "from 6.12 on no signal and no abstract socket beyond the worker"
    )

    def missing(self) -> str | None:
        if sys.platform != "linux":
            return "Landlock is a part of Linux"
        try:
            linux.landlock_version()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            return f"{reason}; it needs Linux 5.13, built with Landlock and started with it in lsm="
        return None

    def apply(self, plan: SandboxPlan, limits: WorkerLimits) -> None:
        del limits
        version = linux.landlock_version()
        files = _known(_FILES, version)
        ruleset = linux.landlock_ruleset(files, _known(_TCP, version), _known(_SCOPES, version))
        for path, rights in _exceptions(plan).items():
            linux.landlock_allow(ruleset, path, rights & files)
        linux.landlock_restrict(ruleset)
        os.close(ruleset)


def _known(rights: dict[int, int], version: int) -> int:
    return sum(bits for since, bits in rights.items() if since <= version)


def _exceptions(plan: SandboxPlan) -> dict[str, int]:
    read_folder, use_device = _READ_FILE | _READ_DIR, _READ_FILE | _WRITE_FILE
    allowed = {path: read_folder if os.path.isdir(path) else _READ_FILE for path in plan.readable}
    allowed |= dict.fromkeys(_DEVICES, use_device)
    if plan.devices:
        allowed |= dict.fromkeys(plan.devices, use_device | _IOCTL_DEV)
        # The CUDA driver reads it, and ends the process if it cannot name its threads there.
        allowed["/proc"] = read_folder | _WRITE_FILE
    if "namespaces" not in plan.without:
        allowed |= dict.fromkeys(_PRIVATE, ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK))
    return allowed
