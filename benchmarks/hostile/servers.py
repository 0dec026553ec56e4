"""A server with tokens, and what it uses: processor time, memory, descriptors."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.hostile.attackers import PRINCIPALS
from logitport_server.access import new_token
from tests.conftest import RunningServer, run_server
from tests.processes import PROC, descendants

# The defaults of the server, which the function for tests would make longer.
_TIMEOUTS = ("--processor-timeout-seconds", "2", "--load-timeout-seconds", "10")
_METRICS_TIMEOUT_SECONDS = 30.0
_SCOPES = ["apply", "register"]


class Usage(NamedTuple):
    """Resources that a server uses at one time.

    Attributes:
        server_bytes: resident memory of the server's own process.
        all_bytes: proportional memory of it and its workers: a page that several share is divided between them.
        descriptors: open files and sockets of the server's own process.
        workers: processes below the server.
    """

    server_bytes: int = 0
    all_bytes: int = 0
    descriptors: int = 0
    workers: int = 0

    def highest(self, other: Usage) -> Usage:
        """The higher of both, value by value."""
        return Usage(*map(max, self, other))

    def minus(self, other: Usage) -> Usage:
        """The difference, value by value."""
        return Usage(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class HostileServer:
    """A server that an innocent principal shares with the attacker's.

    Attributes:
        target: HOST:PORT.
        innocent: token of the innocent principal.
        hostile: tokens of the attacker's principals.
    """

    def __init__(self, running: RunningServer, innocent: str, hostile: list[str]) -> None:
        self.target = running.target
        self.innocent, self.hostile = innocent, hostile
        self._running = running
        self._pid = running.process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._running.process.poll() is None

    def usage(self) -> Usage:
        """Return the resources that it uses now."""
        pids = [self._pid, *descendants(self._pid)]
        proportional = sum(map(_proportional_bytes, pids))
        return Usage(_resident_bytes(self._pid), proportional, _descriptors(self._pid), len(pids) - 1)

    def cpu_seconds(self) -> float:
        """Processor time of the server and its workers, also of those that have ended."""
        return sum(cpu_seconds(pid) for pid in [self._pid, *descendants(self._pid)])

    def metrics(self) -> tuple[int, dict[str, float]]:
        """Length of the metrics' page in bytes, and the values without labels."""
        with urllib.request.urlopen(self._running.metrics_url, timeout=_METRICS_TIMEOUT_SECONDS) as page:
            text = page.read().decode()
        return len(text), {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}

    def freeze(self) -> None:
        """Stop the server and its workers, so that they use no processor time."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue them."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for _ in range(2):  # a worker that is forked meanwhile is found the second time
            for pid in [self._pid, *descendants(self._pid)] if self.runs else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


@contextmanager
def hostile_server(*options: str) -> Iterator[HostileServer]:
    """Run a server with these options and the defaults."""
    names = ["innocent", *(f"hostile-{number}" for number in range(PRINCIPALS))]
    tokens, grants = zip(*(new_token(name, _SCOPES) for name in names), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokens")
        file.write_text("\n".join(grant.line for grant in grants))
        listening = ("--tokens", str(file), "--metrics-listen", "127.0.0.1:0")
        with run_server("--enable-custom-logit-processor", *listening, *_TIMEOUTS, *options) as running:
            server = HostileServer(running, tokens[0], list(tokens[1:]))
            try:
                yield server
            finally:
                server.thaw()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of its children that have ended; 0.0 if it has ended itself."""
    return sum(map(int, _read(pid, "stat").rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return sum(map(int, _read(pid, "statm").split()[1:2])) * os.sysconf("SC_PAGE_SIZE")


def _proportional_bytes(pid: int) -> int:
    return sum(
        int(line.split()[1]) * 1024 for line in _read(pid, "smaps_rollup").splitlines() if line.startswith("Pss:")
    )


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(PROC / str(pid) / "fd"))
    except OSError:
        return 0


def _read(pid: int, name: str) -> str:
    """A file of a process in /proc; empty if it has ended."""
    try:
        return (PROC / str(pid) / name).read_text()
    except OSError:
        return ""
