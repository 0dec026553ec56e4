"""What the machine, or the container, permits: memory and processes, and what principals may need."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logitport_server.principal_process.kernel_limits import STACK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.config import ServerConfig
    from logitport_session.resources.session_limits import SessionLimits

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")

# Of the machine's memory, for one process: no principal can take the memory of all.
_PART_OF_MACHINE = 0.5
# Frames of the maximum size at the same time, for one step: the frame, its logits, their copies and the reply.
_FRAMES = 4
# Measured with one or two sessions: 10 MB of its own, and 7 threads.
_IDLE_BYTES, _IDLE_THREADS = 12 << 20, 8
# Of a process: a thread for each transport of each session; those for calls and for admissions; and others. A stack
# counts as private memory, used or not.
_THREADS_PER_SESSION, _OTHER_THREADS_OF_PROCESS = 2, 64 + 64 + 16
# The front door, with its threads, and both zygotes.
_OTHER_BYTES, _OTHER_THREADS = 512 << 20, 300


def memory_bytes(root: Path = ROOT, proc: Path = PROC) -> int:
    """Return the memory that this process may use: the machine's, or less in a cgroup with a limit."""
    limits = (_limit(path) for path in _files("memory", ("memory.max", "memory.limit_in_bytes"), root, proc))
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits, sys.maxsize)


def max_tasks(root: Path = ROOT, proc: Path = PROC) -> tuple[int, str]:
    """Return how many processes and threads may exist, and the name of the limit."""
    found = [(_limit(path), str(path)) for path in _files("pids", ("pids.max",), root, proc)]
    if os.geteuid() != 0:  # the kernel does not apply it to root
        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        found.append((sys.maxsize if soft == resource.RLIM_INFINITY else soft, "ulimit -u"))
    return min(found, default=(sys.maxsize, "no limit"))


def principal_bytes(limits: SessionLimits) -> int:
    """Return the private memory that one principal may need: its account, and a few of the largest frames."""
    return limits.max_principal_memory + _FRAMES * limits.max_message_bytes + _IDLE_BYTES


def process_limit(config: ServerConfig, machine: int) -> int:
    """Return the hard limit of private memory of a principal's process, in addition to what it inherits.

    It is half of the machine's memory, or more where the other limits permit one principal to need more.

    Args:
        config: the options.
        machine: memory in bytes.
    """
    threads = _THREADS_PER_SESSION * config.max_sessions_per_principal + _OTHER_THREADS_OF_PROCESS
    return max(int(machine * _PART_OF_MACHINE), principal_bytes(config.session_limits) + threads * STACK_BYTES)


class Need(NamedTuple):
    """One resource: what the machine has, and what the principals need if each of them has one session.

    Attributes:
        what: the resource, with its unit.
        limit: its name, for the operator.
        advice: what to change.
    """

    what: str
    has: int
    needs: int
    limit: str
    advice: str

    @property
    def warning(self) -> str | None:
        """For the log, if the machine has too little."""
        if self.has >= self.needs:
            return None
        return (
            f"{self.has} {self.what} ({self.limit}) are too few for all sessions, which need about {self.needs}: "
            f"{self.advice}, or lower --max-sessions-per-principal"
        )


def needs(config: ServerConfig, root: Path = ROOT, proc: Path = PROC) -> list[Need]:
    """Return the resources that as many principals need as there may be sessions."""
    principals = config.max_sessions
    tasks, limit = max_tasks(root, proc)
    return [
        Need(
            "MiB of memory",
            memory_bytes(root, proc) >> 20,
            (principals * _IDLE_BYTES + principal_bytes(config.session_limits) + _OTHER_BYTES) >> 20,
            "of the machine or the container",
            "raise memory.max, lower --max-message-bytes or --max-principal-memory",
        ),
        Need(
            "processes and threads",
            tasks,
            principals * _IDLE_THREADS + _OTHER_THREADS,
            limit,
            "raise it (ulimit -u, TasksMax= of systemd, pids.max of a container)",
        ),
    ]


def _files(controller: str, names: tuple[str, ...], root: Path, proc: Path) -> Iterator[Path]:
    """Yield the files of a limit in the cgroup of this process and in those above it, of v1 and v2."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers
        folder = top / path.strip("/")
        for each in (folder, *folder.parents):
            yield from (each / name for name in names if (each / name).is_file())
            if each == top:
                break


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
        return sys.maxsize if text == "max" else int(text)
    except (OSError, ValueError):
        return sys.maxsize
