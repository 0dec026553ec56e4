"""Resource usage of a server and its child processes, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# The front door has a channel, a pidfd and a lifeline for each process of a principal, and the pidfd of each worker.
_FRONT_DOOR_DESCRIPTORS = 3
# A process of a principal has three standard streams, its channel and its lifeline; for each worker its connection and
# its pidfd.
_PROCESS_DESCRIPTORS, _WORKER_DESCRIPTORS = 5, 2


@dataclass(frozen=True)
class Usage:
    """The resources of a server: of its front door, and of the processes of its principals.

    Attributes:
        resident_bytes: memory of the front door, and private memory of the processes.
        descriptors: number of open files and sockets, without those that all processes and workers have.
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
        """Return the usage of the server with this front door."""
        processes = principal_processes(pid)
        usage = cls(
            _status(pid, "VmRSS"),
            len(_descriptors(pid)) - _FRONT_DOOR_DESCRIPTORS * len(processes),
            0,
            _status(pid, "Threads"),
            0,
        )
        of_workers = 0
        for process in processes:
            try:
                descriptors = _descriptors(process)
                regions = (PROC / str(process) / "maps").read_text().count("logitport-region")
                private, threads = private_bytes(process), _status(process, "Threads")
            except OSError:  # it has ended meanwhile
                continue
            workers = sum("pidfd" in target for target in descriptors)
            of_workers += workers
            usage = cls(
                usage.resident_bytes + private,
                usage.descriptors + len(descriptors) - _PROCESS_DESCRIPTORS - _WORKER_DESCRIPTORS * workers,
                usage.workers + workers,
                usage.threads + threads,
                usage.regions + regions,
            )
        return cls(usage.resident_bytes, usage.descriptors - of_workers, usage.workers, usage.threads, usage.regions)


def usage_of(pid: int) -> tuple[int, int, int]:
    """Return the private bytes, the threads and the descriptors of one process. Raises OSError if it has ended."""
    return private_bytes(pid), _status(pid, "Threads"), len(_descriptors(pid))


def principal_processes(pid: int) -> list[int]:
    """Return the ids of the processes of principals of this server."""
    # A child that a process of a principal has just forked has its command line until it runs another program.
    forked = {child for child in descendants(pid) if _is_of_sessions(child)}
    zygotes = {child for child in forked if _parent(child) not in forked}
    return [child for child in sorted(forked) if _parent(child) in zygotes]


def _is_of_sessions(pid: int) -> bool:
    try:
        return b"logitport_server.principal_process" in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _status(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status; bytes instead of kB."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    value = dict(line.split(":", 1) for line in lines)[field].split()
    return int(value[0]) << (10 if value[1:] == ["kB"] else 0)


def private_bytes(pid: int) -> int:
    """Return the memory that the process shares with no other one, such as the one that it is a fork of."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))


def _descriptors(pid: int) -> list[str]:
    return [_target(descriptor) for descriptor in (PROC / str(pid) / "fd").iterdir()]


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
    pythons = {pid for pid in found if _is_python(pid) and not _is_of_sessions(pid)}
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


def has_ended(process: int) -> bool:
    """Whether a process has ended; it may not have been reaped."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
