"""A cgroup for each worker, where the server may create cgroups: cgroup v2, cgroups(7).

systemd permits it with `Delegate=yes` in the server's unit. It is no layer: most servers run without it, and then the
niceness and the resource limits of workers hold alone.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_sandbox.plan import WorkerLimits

logger = logging.getLogger(__name__)

_CONTROLLERS = ("cpu", "memory", "pids")

# Children of the server's own cgroup, as `server` is.
_GROUPS = ("workers", "principals")

# The server has the default weight, 100. All workers together have the part of one process of niceness 5.
_WORKERS_WEIGHT = 33

# Each thread has a stack, and a worker has temporary files in two folders; both count as memory.
_STACK_BYTES = 8 << 20
_TEMPORARY_FOLDERS = 2


class WorkerCgroups:
    """Creates cgroups of workers below the server's own cgroup.

    Attributes:
        path: folder of the common cgroup of all workers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = count(1)
        self._warned = False
        # Cgroups that could not be removed yet.
        self._left: set[Path] = set()

    @classmethod
    def open(cls, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> WorkerCgroups:
        """Prepare the server's own cgroup.

        The server moves to the child `server`, because a cgroup with processes cannot have children with controllers.
        Workers get children of `workers`.

        Args:
            root: where cgroup v2 is mounted.
            proc: where procfs is mounted.

        Raises OSError with the reason if this is not permitted here.
        """
        workers = open_group("workers", root, proc)
        (workers / "cpu.weight").write_text(str(_WORKERS_WEIGHT))
        return cls(workers)

    def add(self, process_id: int, limits: WorkerLimits) -> Path | None:
        """Create a cgroup, and move a process to it.

        Args:
            process_id: of the process, which has not run shipped code yet; 0 if it has ended.
            limits: its limits. Memory that it has in common with the zygote does not count, nor do regions that the
                server or an engine has written to.

        Returns:
            The folder; None if that fails. The first failure is logged.
        """
        self._remove_left()
        path = self.path / f"worker-{os.getpid()}-{next(self._numbers)}"
        memory = limits.memory_bytes + limits.threads * _STACK_BYTES + _TEMPORARY_FOLDERS * limits.temporary_bytes
        try:
            if not process_id:  # in cgroup.procs, 0 is this process itself
                raise ProcessLookupError("the worker has ended")
            path.mkdir()
            (path / "memory.max").write_text(str(memory))
            (path / "memory.oom.group").write_text("1")
            (path / "pids.max").write_text(str(limits.threads))
            (path / "cgroup.procs").write_text(str(process_id))
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("a worker has no cgroup of its own: %s", error)
            self.remove(path)
            return None
        return path

    def remove(self, path: Path) -> None:
        """Remove the cgroup of a worker that has ended."""
        self._left.add(path)
        self._remove_left()

    def _remove_left(self) -> None:
        for path in tuple(self._left):
            with suppress(OSError):  # its last process is still ending
                path.rmdir()
            if not path.exists():
                self._left.discard(path)


def open_group(name: str, root: Path, proc: Path) -> Path:
    """Return a child of the server's own cgroup, for cgroups with controllers.

    The server moves to the child `server`; see `WorkerCgroups.open`. Raises OSError with the reason if this is not
    permitted here.
    """
    own = own_cgroup(root, proc)
    if own.name == "server" and any((own.parent / other).is_dir() for other in _GROUPS):  # divided before
        own = own.parent
    else:
        _make_room(own, proc)
    group = own / name
    group.mkdir(exist_ok=True)
    for old in group.iterdir():  # of a server that was killed
        if old.is_dir():
            with suppress(OSError):
                old.rmdir()
    _enable_controllers(group)
    return group


def own_cgroup(root: Path, proc: Path) -> Path:
    """Return the folder of this process's cgroup. Raises OSError if it has no cgroup v2."""
    if not (root / "cgroup.controllers").is_file():
        raise FileNotFoundError(f"no cgroup v2 is mounted at {root}")
    for line in (proc / "self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return root / line[len("0::") :].strip("/")
    raise FileNotFoundError("this process has no cgroup v2")


def check_room(own: Path, proc: Path) -> None:
    """Raise OSError with the reason if this process may not divide its cgroup."""
    lacking = set(_CONTROLLERS) - set((own / "cgroup.controllers").read_text().split())
    if lacking:
        raise OSError(f"{own} lacks the controllers {', '.join(sorted(lacking))}")
    for name in ("", "cgroup.procs", "cgroup.subtree_control"):
        if not os.access(own / name, os.W_OK):
            raise PermissionError(f"{own / name} is not writable")
    others = [pid for pid in _processes(own) if not _is_own(pid, proc)]
    if others:  # such as a login session: its cgroup is not the server's to divide
        raise PermissionError(f"{own} has other processes, such as {others[0]}")


def _make_room(own: Path, proc: Path) -> None:
    """Move this process and those that it has started to a child of their cgroup."""
    check_room(own, proc)
    processes = _processes(own)
    server = own / "server"
    server.mkdir(exist_ok=True)
    for pid in processes:
        with suppress(ProcessLookupError):
            (server / "cgroup.procs").write_text(str(pid))
    try:
        _enable_controllers(own)
    except OSError:
        for pid in processes:
            with suppress(OSError):
                (own / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            server.rmdir()
        raise


def _enable_controllers(path: Path) -> None:
    (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))


def _processes(path: Path) -> list[int]:
    return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]


def _is_own(pid: int, proc: Path) -> bool:
    """Whether a process is this one, or was started by it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:  # it has ended
            return True
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == os.getpid()


def open_cgroups() -> WorkerCgroups | None:
    """Return where workers get cgroups of their own; None if the machine does not permit it. Logs which."""
    try:
        cgroups = WorkerCgroups.open()
    except (OSError, ValueError) as error:
        logger.info("workers have no cgroups of their own: %s", error)
        return None
    logger.info("each worker has a cgroup of its own in %s", cgroups.path)
    return cgroups
