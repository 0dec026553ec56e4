"""One `logitport serve` of the storm, which is started again after each end, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.conftest import COMMAND, environment, free_address
from tests.processes import PROC, Usage, descendants, principal_processes, usage_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

READY_SECONDS = 90.0
STOP_SECONDS = 45.0  # --stop-seconds, and 7 s
# What a server and its processes may use at most: docs/security.md and docs/operating.md, "Limits", with some reserve.
BOUNDS = {
    "processes of principals": 64 + 12 * (os.cpu_count() or 1),  # 64 that are idle, and one for each core and principal
    "workers": 64 + 16,  # --max-workers, and those that are ending
    "private MiB of a principal's process": 1024,  # --max-principal-memory, four frames, stacks
    "threads of a principal's process": 2 * 64 + 64,  # of sessions and calls
    "descriptors of a principal's process": 64 * 10 + 64 * 4 + 64,  # of sessions and workers
    "private MiB of the front door": 1024,
    "threads of the front door": 256,
    "descriptors of the front door": 1024 + 4 * 256 + 64 + 256,
}
# Growth that is not a leak: the allocator keeps memory, gRPC and pools keep threads.
_GROWTH_BYTES, _GROWTH_DESCRIPTORS, _GROWTH_THREADS = 160 << 20, 16, 80
# Of a process of a principal, which is kept for its next session; it has had 64 calls at once.
_PROCESS_BYTES, _PROCESS_THREADS = 48 << 20, 64


class Process(NamedTuple):
    """A process; its number may be used again, its start time then differs."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process with this number, if there is one and it is not a zombie."""
        with suppress(OSError):
            fields = stat(pid)
            return None if fields[0] in "ZX" else cls(pid, int(fields[19]))
        return None

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return Process.of(self.pid) == self

    @property
    def role(self) -> str:
        """What it is: "principal" (its sessions), "worker" (a fork of a zygote), or "zygote"."""
        with suppress(OSError):
            command = (PROC / str(self.pid) / "cmdline").read_bytes()
            if b"principal_process" in command:
                return "principal"
            return "worker" if (PROC / stat(self.pid)[1] / "cmdline").read_bytes() == command else "zygote"
        return "worker"  # it has ended

    @property
    def principal(self) -> str:
        """The principal that a process of one shows as its name; another text for other processes."""
        with suppress(OSError):
            return (PROC / str(self.pid) / "comm").read_text(errors="replace").strip()
        return ""

    def describe(self) -> str:
        """Its command, and where it waits in the kernel."""
        folder = PROC / str(self.pid)
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            return f"{command}in {(folder / 'wchan').read_text()}"
        return "ended"


def stat(pid: int) -> list[str]:
    """The fields of a process after its name: state, parent, ... Raises OSError."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


class StormServer:
    """A server on a fixed address.

    Attributes:
        target: HOST:PORT.
        options: of the command, besides the address.
        folder: for its files.
        serving: whether it is ready, and no end is intended.
        seen: all processes that were found below it.
    """

    def __init__(self, name: str, folder: Path, options: Sequence[str], preload: str = "", target: str = "") -> None:
        self.name, self.target, self.options = name, target or free_address(), options
        self.serving = False
        self.seen: set[Process] = set()
        self.folder = folder / name
        self._log, self._out = self.folder / "log", self.folder / "out"
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._arguments = [COMMAND, "serve", "--listen", self.target, *options]
        self._environment = environment() | {"TMPDIR": str(self.temporary)}
        self._environment |= {"LD_PRELOAD": preload, "STORM_SLOW": str(folder / "slow")} if preload else {}
        self._idle: Usage | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of its process; 0 if it was never started."""
        return self.process.pid if self.process else 0

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises RuntimeError."""
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._out.read_bytes().startswith(b"logitport listening on "):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start: {self.log_end()}")
            time.sleep(0.05)
        self._idle = Usage.of(self.pid)
        self.serving = True

    def end(self, number: signal.Signals) -> int | None:
        """Send SIGTERM or SIGKILL, and wait for the end. Returns the exit status; None if it has not ended."""
        self.serving = False
        assert self.process is not None
        self.signal(number)
        self.signal(signal.SIGCONT)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's own process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def below(self) -> list[Process]:
        """The processes below it now, in the order of their depth."""
        found = [process for pid in descendants(self.pid) if (process := Process.of(pid))]
        self.seen.update(found)
        return found

    def peaks(self) -> dict[str, int]:
        """The values of BOUNDS now."""
        roles = Counter(process.role for process in self.below())
        found = Counter({"processes of principals": roles["principal"], "workers": roles["worker"]})
        for process in [self.pid, *principal_processes(self.pid)]:
            of = "of the front door" if process == self.pid else "of a principal's process"
            with suppress(OSError, KeyError):
                memory, threads, descriptors = usage_of(process)
                values = (("private MiB", memory >> 20), ("threads", threads), ("descriptors", descriptors))
                found |= Counter({f"{what} {of}": value for what, value in values})
        return found

    def growth(self) -> str:
        """What it uses more than when it had started, if that is more than it may keep."""
        idle = self._idle
        try:
            usage = Usage.of(self.pid)
        except (OSError, KeyError):
            return ""
        if idle is None:
            return ""
        processes = len(principal_processes(self.pid))
        excesses = {
            "resident bytes": (usage.resident_bytes - idle.resident_bytes, _GROWTH_BYTES + _PROCESS_BYTES * processes),
            "descriptors": (usage.descriptors - idle.descriptors, _GROWTH_DESCRIPTORS),
            "threads": (usage.threads - idle.threads, _GROWTH_THREADS + _PROCESS_THREADS * processes),
            "regions": (usage.regions - usage.workers, 0),
        }
        found = ", ".join(f"{value:+} {what}" for what, (value, most) in excesses.items() if value > most)
        return f"{found}: {self._by_process()}" if found else ""

    def _by_process(self) -> str:
        with suppress(OSError, KeyError):
            processes = [self.pid, *principal_processes(self.pid)]
            return str({pid: [memory >> 20, *rest] for pid in processes for memory, *rest in [usage_of(pid)]})
        return ""

    def left(self) -> dict[str, Any]:
        """What it has left behind, after its end."""
        found = {
            "processes": [f"{process.pid}: {process.describe()}" for process in self.seen if process.runs],
            "files": sorted(map(str, self.temporary.rglob("*"))),
            "sockets": [line for line in (PROC / "net/unix").read_text().splitlines() if str(self.temporary) in line],
        }
        return {what: which for what, which in found.items() if which}

    def errors(self, ignored: str = "") -> list[str]:
        """The lines of errors in its log, without those that the pattern matches."""
        lines = self._log.read_text(errors="replace").splitlines()
        found = [at for at, line in enumerate(lines) if re.search(r" (ERROR|CRITICAL) |^Traceback ", line)]
        texts = ["\n".join(lines[at : at + 40]) for at in found]
        return [text[:4000] for text in texts if not ignored or not re.search(ignored, text)]

    def log_end(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]
