"""Commands on a machine that really lacks layers of the sandbox. As a program, it removes them and runs a command.

python tests/missing_layers.py NAME,NAME COMMAND ARGUMENT...
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from pathlib import Path

from logitport_sandbox import linux, mounts, users
from logitport_sandbox.interpreter import readable_paths
from logitport_sandbox.layers import bpf
from logitport_sandbox.layers.system_calls import AUDIT_ARCHITECTURES, numbers

LANDLOCK_CREATE_RULESET = 444
PR_CAPBSET_DROP = 24
# linux/capability.h: all that root has in a container of Docker by default.
OF_A_CONTAINER = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
CLOSED = sorted(filter(None, set(map(users.closed_part, readable_paths(sys.executable)))))


def without(layers: str, *command: str) -> list[str]:
    """Return the command for a machine without these: any of bubblewrap, namespaces, landlock and readable-python.

    Without namespaces, root has the capabilities of a container, and other users can read its Python as on most
    machines, unless readable-python is missing, too. Only where there are folders in `CLOSED` can it be.
    """
    return [sys.executable, __file__, layers, *command]


def remove_layers(layers: set[str]) -> None:
    """Hide bwrap, and make the kernel refuse the system calls that the other layers use."""
    if os.geteuid() == 0 and "namespaces" in layers:
        if CLOSED and "readable-python" not in layers:
            open_python()
        keep_capabilities_of_a_container()
    if "bubblewrap" in layers:
        folders = os.environ["PATH"].split(":")
        os.environ["PATH"] = ":".join(folder for folder in folders if not Path(folder, "bwrap").exists())
    machine = platform.machine()
    unshare = numbers(machine)["unshare"]
    assert unshare is not None
    refusals = {}
    if "namespaces" in layers:
        refusals[unshare] = bpf.fail_with(errno.EPERM)
    if "landlock" in layers:
        refusals[LANDLOCK_CREATE_RULESET] = bpf.fail_with(errno.EOPNOTSUPP)
    if refusals:
        linux.no_new_privileges()
        linux.filter_system_calls(bpf.assemble(AUDIT_ARCHITECTURES[machine], refusals, bpf.ALLOW))


def open_python() -> None:
    """Let all users read Python, in a mount namespace of this process."""
    paths = {place for path in readable_paths(sys.executable) for place in (path, os.path.realpath(path))}
    linux.unshare(linux.CLONE_NEWNS)
    mounts.cover(CLOSED, "mode=0755", sorted(paths))


def keep_capabilities_of_a_container() -> None:
    """Prevent programs that this process executes from having others."""
    for capability in set(range(64)) - OF_A_CONTAINER:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3)


if __name__ == "__main__":
    remove_layers(set(sys.argv[1].split(",")))
    os.execv(sys.argv[2], sys.argv[2:])
