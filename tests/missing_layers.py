"""Commands on a machine that really lacks layers of the sandbox. As a program, it removes them and runs a command.

python tests/missing_layers.py NAME,NAME COMMAND ARGUMENT...
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from pathlib import Path

from logitport_sandbox import bpf, linux
from logitport_sandbox.system_calls import AUDIT_ARCHITECTURES, numbers

LANDLOCK_CREATE_RULESET = 444


def without(layers: str, *command: str) -> list[str]:
    """Return the command for a machine without these layers: any of bubblewrap, namespaces and landlock."""
    return [sys.executable, __file__, layers, *command]


def remove_layers(layers: set[str]) -> None:
    """Hide bwrap, and make the kernel refuse the system calls that the other layers use."""
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


if __name__ == "__main__":
    remove_layers(set(sys.argv[1].split(",")))
    os.execv(sys.argv[2], sys.argv[2:])
