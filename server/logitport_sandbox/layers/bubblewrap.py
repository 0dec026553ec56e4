"""The outer layer: the preloaded parent, and so every worker, has a file system of its own with few files."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

from logitport_sandbox.layers.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_sandbox.plan import SandboxPlan

_PROBE_SECONDS = 20

# Workers share these folders only without the namespaces layer, which mounts a private folder for each.
_TEMPORARY_BYTES = str(64 << 20)

_NAMESPACES = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
_DEVICES = ["--proc", "/proc", "--dev", "/dev"]
_SHARED_MEMORY = ["--perms", "1777", "--size", _TEMPORARY_BYTES, "--tmpfs", "/dev/shm"]  # noqa: S108 - the sandbox's own
_TEMPORARY = ["--perms", "1777", "--size", _TEMPORARY_BYTES, "--tmpfs", "/tmp"]  # noqa: S108
_ROOT = [*_DEVICES, *_TEMPORARY, *_SHARED_MEMORY]
_HOSTNAME = ("--hostname", "logitport")

# The preloaded parent of a root server becomes another user, as do its workers, or maps root to one.
_ROOTS_CAPABILITIES = [
    *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL", "--cap-add", "CAP_SETFCAP")
]


class Bubblewrap(Layer):
    """bubblewrap, https://github.com/containers/bubblewrap, 0.6 or later."""

    name = "bubblewrap"
    does = "only Python's own files, no network, no view of the host's processes"

    def missing(self) -> str | None:
        found = shutil.which("bwrap")
        if found is None:
            return "there is no bwrap; install the package bubblewrap"
        error = _error(found, _hostname(found))
        if error is None:
            return None
        return f"bwrap does not work here: {error}; it needs bubblewrap 0.6 and user namespaces, or root"

    def wrap(self, command: list[str], plan: SandboxPlan) -> list[str]:
        binds = [argument for path in plan.readable for argument in ("--ro-bind", path, path)]
        devices = [argument for path in plan.devices for argument in ("--dev-bind", path, path)]
        bwrap = shutil.which("bwrap") or "bwrap"
        return [
            *(bwrap, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *(_ROOTS_CAPABILITIES if os.geteuid() == 0 else ()),
            *_NAMESPACES,
            *_hostname(bwrap),
            *_ROOT,
            *_parents(plan.readable),
            *binds,
            *devices,
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"),  # noqa: S108
            *command,
        ]


@functools.cache
def _hostname(bwrap: str) -> tuple[str, ...]:
    """Return the arguments that hide the host's name. Some containers forbid them to users other than root."""
    return _HOSTNAME if _error(bwrap, _HOSTNAME) is None else ()


def _error(bwrap: str, arguments: Iterable[str]) -> str | None:
    """Run Python in an outer layer with these arguments. Returns why that fails."""
    # Bind all of the host's files except /dev: the interpreter may be in any folder, even below /tmp.
    root = ["--ro-bind", "/", "/", *_DEVICES, *_SHARED_MEMORY]
    probe = [bwrap, *_NAMESPACES, *arguments, *root, sys.executable, "-I", "-S", "-c", ""]
    try:
        subprocess.run(probe, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return (getattr(error, "stderr", None) or str(error)).strip()
    return None


def _parents(paths: Iterable[str]) -> list[str]:
    """Return arguments that create the folders above the paths. Bubblewrap itself creates them for root only."""
    folders = {str(parent) for path in paths for parent in PurePath(path).parents} - {"/"}
    return [argument for folder in sorted(folders) for argument in ("--dir", folder)]
