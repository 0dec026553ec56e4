"""Separate namespaces for each worker: no other process, no network, and private temporary folders."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from logitport_sandbox import linux, mounts
from logitport_sandbox.layers.layer import Layer
from logitport_sandbox.users import NOBODY

if TYPE_CHECKING:
    from logitport_sandbox.plan import SandboxPlan, WorkerLimits

_PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - private to each worker
_PROBE = f"""
from logitport_sandbox import users
from logitport_sandbox.plan import SandboxPlan
from {__name__} import Namespaces
if users.lacking() is None:
    users.enter_worker(users.WORKERS[0])
Namespaces().split(SandboxPlan(frozenset(), (), (), b""))
"""
_PROBE_SECONDS = 20

# The settings of kernels that forbid user namespaces to ordinary users: path, value that forbids, remedy.
SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
)


class Namespaces(Layer):
    """namespaces(7): user, pid, mount, ipc, network, uts and cgroup."""

    name = "namespaces"
    does = "workers cannot see, signal or trace one another; a private temporary folder, no /proc, no network"

    def missing(self) -> str | None:
        command = [sys.executable, "-I", "-c", _PROBE]
        try:
            tried = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"could not be tried: {error}"
        if tried.returncode == 0:
            return None
        needs = [remedy for path, off, remedy in SWITCHES if _read(path) == off]
        message = tried.stderr.strip().rpartition("\n")[2]
        return f"{message}; it needs {' and '.join(needs) or 'a kernel and a container that allow user namespaces'}"

    def split(self, plan: SandboxPlan) -> None:
        user, group = os.geteuid(), os.getegid()
        # The CUDA driver looks up its threads in /proc. That is the parent's, so process ids must be the parent's too.
        pid_namespace = 0 if plan.devices else linux.CLONE_NEWPID
        linux.unshare(
            linux.CLONE_NEWUSER
            | pid_namespace
            | linux.CLONE_NEWNS
            | linux.CLONE_NEWIPC
            | linux.CLONE_NEWNET
            | linux.CLONE_NEWUTS
            | linux.CLONE_NEWCGROUP
        )
        linux.set_dumpable(True)  # otherwise a process that changed its user cannot open its own files in /proc
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)

    def apply(self, plan: SandboxPlan, limits: WorkerLimits) -> None:
        # Python may be installed below /tmp.
        mounts.cover(_PRIVATE, f"mode=0700,size={limits.temporary_bytes},nr_inodes=4096", plan.readable)
        if not plan.devices:
            mounts.mount_empty("/proc", "mode=0555,size=4k,nr_inodes=2", linux.MS_RDONLY)
        os.chdir(_PRIVATE[0])  # the previous working folder is the parent's, and may now be hidden by a mount
        linux.drop_capabilities()
        linux.set_dumpable(False)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
