"""Resource usage of a server and its child processes, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# A server has two descriptors for each worker: the connection and the pidfd.
_WORKER_DESCRIPTORS = 2


@dataclass(frozen=True)
class Usage:
    """The resources of a process.

    Attributes:
        resident_bytes: resident memory.
        descriptors: number of open files and sockets, without those of workers.
        workers: number of workers. A killed one counts until its next call or the idle timeout.
        threads: number of threads.
        regions: number of mappings of shared memory.
    """

    resident_bytes: int
    descriptors: int
    workers: int
    threads: int
    regions: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Return the usage of this process."""
        process = PROC / str(pid)
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        descriptors = [_target(descriptor) for descriptor in (process / "fd").iterdir()]
        num_workers = sum("pidfd" in target for target in descriptors)
        return cls(
            int(status["VmRSS"].split()[0]) << 10,
            len(descriptors) - _WORKER_DESCRIPTORS * num_workers,
            num_workers,
            int(status["Threads"]),
            (process / "maps").read_text().count("logitport-region"),
        )


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # it was closed meanwhile
        return ""


def descendants(pid: int) -> list[int]:
    """Return the ids of all child processes, including indirect ones."""
    children: dict[int, list[int]] = {}
    for process in PROC.iterdir():
        if process.name.isdecimal():
            parent = _parent(int(process.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(process.name))
    found, next_ones = [], [pid]
    while next_ones:
        next_ones = [child for one in next_ones for child in children.get(one, ())]
        found += next_ones
    return found


def workers(server: int) -> list[int]:
    """Return the ids of the worker processes, which are forks of a zygote."""
    found = descendants(server)
    pythons = {pid for pid in found if _is_python(pid)}
    return [pid for pid in pythons if _parent(pid) in pythons]


def _is_python(pid: int) -> bool:
    try:
        return b"python" in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False


def _parent(pid: int) -> int | None:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
