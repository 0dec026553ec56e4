"""What the kernel tells of a server and of all that it has started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Of a worker: a connection, and the process (pidfd).
_WORKER_DESCRIPTORS = 2


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Attributes:
        resident_bytes: memory.
        descriptors: open files and sockets, but for those of workers.
        workers: those it has a handle of, which it keeps warm; one that was killed, until it is called or long idle.
        threads: its threads.
        regions: mappings of shared memory.
    """

    resident_bytes: int
    descriptors: int
    workers: int
    threads: int
    regions: int

    @classmethod
    def by(cls, pid: int) -> Held:
        process = PROC / str(pid)
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        descriptors = [_target(descriptor) for descriptor in (process / "fd").iterdir()]
        held = sum("pidfd" in target for target in descriptors)
        return cls(
            int(status["VmRSS"].split()[0]) << 10,
            len(descriptors) - _WORKER_DESCRIPTORS * held,
            held,
            int(status["Threads"]),
            (process / "maps").read_text().count("logitport-region"),
        )


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # it has just been closed
        return ""


def descendants(pid: int) -> list[int]:
    """The processes that it has started, and those that they have, and so on."""
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
    """Those of them that run shipped processors: the forks of the preloaded parent."""
    found = descendants(server)
    preloaded = {pid for pid in found if _is_python(pid)}
    return [pid for pid in preloaded if _parent(pid) in preloaded]


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
