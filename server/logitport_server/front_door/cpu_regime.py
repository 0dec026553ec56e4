"""How the kernel divides the CPU among the processes of principals. The choice is made once, at the start.

Measured on 2 cores with Linux 6.18: one principal's process answers a message of 28 bytes each 5 ms, beside 16
processes of another principal that compute without end. Times until the answer in ms, p50 / p99 / longest:

| | the answer computes for 0.05 ms | for 2.7 ms |
|---|---|---|
| alone | 0.1 / 3.8 / 6.9 | 2.7 / 7.6 / 8.8 |
| cgroups of equal weight | 0.1 / 3.9 / 5.5 | 4.3 / 11 / 13 |
| autogroups | 0.1 / 4.9 / 24 | 7.3 / 25 / 28 |
| no division | 0.1 / 8.5 / 11 | 47 / 80 / 80 |

The machine had other load. Autogroups, and the process alone in the first column, shared the CPU with it; the others
had precedence over it. Cgroups were of v1. With 2 busy processes, cgroups and no division are about the same (p99: 2
and 4 ms for the short answer, 13 and 11 ms for the long one).

What was tried without a division and lost, with 16 busy processes and the short answer: SCHED_BATCH for them (13 ms at
p99), slices of 100 ms for them (11 ms), and slices of 0.1 ms for the other process (5 ms, within the noise).
Niceness 10 for them is as good as cgroups (4.3 ms; 3.0 / 11 / 15 ms for the long answer). But without CAP_SYS_NICE or
RLIMIT_NICE, as in most containers, no thread can return from it to short work.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logitport_sandbox.cgroups import check_room, open_group, own_cgroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.front_door.running_process import RunningProcess

logger = logging.getLogger(__name__)

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")

_CGROUP = "the kernel divides the CPU among principals, by a cgroup for each process"


class ProcessCgroups:
    """Creates a cgroup for each principal's process. All have the same weight, whatever their number of threads.

    Workers stay in the cgroups that `WorkerCgroups` creates: one worker may serve several principals.

    Args:
        path: folder of their common cgroup.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = count(1)
        self._warned = False
        # The kernel may take some 10 ms to move a process, which would delay the event loop.
        self._thread = ThreadPoolExecutor(1, "logitport-cgroups")

    def begin(self, process: RunningProcess) -> None:
        """Move a process to a cgroup of its own, in the background. It is removed when the process has ended."""
        path = self.path / f"process-{os.getpid()}-{next(self._numbers)}"
        self._submit(self._add, path, process, asyncio.get_running_loop())
        process.ended.add_done_callback(lambda _: self._submit(self._remove, path))

    def close(self) -> None:
        """Remove the cgroups of all processes that have ended."""
        self._submit(self._remove_left)
        self._thread.shutdown(wait=True)

    def _submit(self, work: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # after `close`
            self._thread.submit(work, *arguments)

    def _add(self, path: Path, process: RunningProcess, loop: asyncio.AbstractEventLoop) -> None:
        if process.ended.done():
            return
        try:
            path.mkdir()
            (path / "cgroup.procs").write_text(str(process.process_id))
            # Twice: between both, the loop handles the end of a process that had ended before.
            loop.call_soon_threadsafe(loop.call_soon, self._check, path, process)
        except RuntimeError:  # the loop has ended
            pass
        except OSError as error:
            self._remove_left()
            if not self._warned and not isinstance(error, ProcessLookupError):
                self._warned = True
                logger.warning("a principal's process has no cgroup of its own: %s", error)

    def _check(self, path: Path, process: RunningProcess) -> None:
        if process.ended.done():
            self._submit(self._return, path)

    def _return(self, path: Path) -> None:
        """Move what is in a cgroup to the front door's: another process had the number of one that had ended."""
        with suppress(OSError):
            for process_id in (path / "cgroup.procs").read_text().split():
                (self.path.parent / "server" / "cgroup.procs").write_text(process_id)
        self._remove(path)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):  # its last thread is still ending: `_remove_left`
            path.rmdir()

    def _remove_left(self) -> None:
        for path in self.path.glob(f"process-{os.getpid()}-*"):
            self._remove(path)


class CpuRegime(NamedTuple):
    """How the CPU is divided.

    Attributes:
        name: cgroup, autogroup or threads.
        description: for the operator.
        cgroups: of processes, once they are opened.
    """

    name: str
    description: str
    cgroups: ProcessCgroups | None = None


def begin(root: Path = ROOT, proc: Path = PROC) -> CpuRegime:
    """Choose how the CPU is divided, and open the cgroups if they are permitted. Logs the choice."""
    try:
        cgroups = ProcessCgroups(open_group("principals", root, proc))
    except (OSError, ValueError) as error:
        found = _without_cgroups(str(error), root, proc)
    else:
        found = CpuRegime("cgroup", f"{_CGROUP}: {cgroups.path}", cgroups)
    logger.info("%s", found.description)
    return found


def look(root: Path = ROOT, proc: Path = PROC) -> CpuRegime:
    """Return what `begin` would choose, without a change."""
    try:
        check_room(own_cgroup(root, proc), proc)
    except (OSError, ValueError) as error:
        return _without_cgroups(str(error), root, proc)
    return CpuRegime("cgroup", _CGROUP)


def _without_cgroups(reason: str, root: Path, proc: Path) -> CpuRegime:
    """Return autogroups if they have an effect; `reason` says why there are no cgroups."""
    try:
        ineffective = _why_no_autogroups(root, proc)
    except OSError as error:
        ineffective = str(error)
    if ineffective is None:
        return CpuRegime(
            "autogroup", f"the kernel divides the CPU among principals, by autogroups; not by cgroups: {reason}"
        )
    return CpuRegime(
        "threads",
        "the machine does not divide the CPU among principals, but among threads: permit the server to divide its "
        "cgroup (Delegate=cpu memory pids of systemd, or a writable /sys/fs/cgroup); no cgroups: "
        f"{reason}; no autogroups: {ineffective}",
    )


def _why_no_autogroups(root: Path, proc: Path) -> str | None:
    """Return why sessions are no scheduling groups; None if they are, see sched(7).

    They are only for processes outside of all cgroups with a share of the CPU. In a container, the path of a cgroup
    does not show that: it begins at the container's cgroup.
    """
    try:
        if (proc / "sys/kernel/sched_autogroup_enabled").read_text().strip() != "1":
            return "they are turned off (sysctl kernel.sched_autogroup_enabled)"
    except FileNotFoundError:
        return "the kernel has none"
    paths = {}  # by controllers; "" for v2
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path.strip("/")
    for controllers, path in paths.items():
        if "cpu" in controllers.split(","):
            # Only the root of a hierarchy of v1 has this file.
            is_root = not path and (root / controllers / "release_agent").exists()
            return None if is_root else f"the server is in a cgroup with a share of the CPU, /{path}"
    group = root / paths.get("", "")
    if not (root / "cgroup.controllers").exists():
        return f"no cgroup v2 is mounted at {root}, which would show the cgroup of the server"
    for each in (group, *group.parents):
        if (each / "cpu.weight").exists():
            return f"the server is in a cgroup with a share of the CPU, {each}"
        if each == root:
            break
    # Every cgroup of v2 but the root has this file.
    return "the cgroup of the container may have a share of the CPU" if (root / "cgroup.type").exists() else None
