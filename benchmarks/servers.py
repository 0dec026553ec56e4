"""Server processes: logitport's, and one that echoes; what they cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logitport import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_SECONDS = 60.0


class Server:
    """A running process.

    Attributes:
        target: where it listens: HOST:PORT of its gRPC service.
    """

    def __init__(self, process: subprocess.Popen[str], target: str) -> None:
        self._process = process
        self.target = target

    @property
    def cpu_seconds(self) -> float:
        """What all its threads have used, in user and kernel mode."""
        # Linux's CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it; /proc/PID/stat counts in 10 ms.
        return time.clock_gettime_ns((~self._process.pid << 3) | 2) / 1e9

    @property
    def resident_bytes(self) -> int:
        """Its memory, shared pages included."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def logitport_server(*options: str) -> Iterator[Server]:
    """`logitport serve`, that accepts shipped processors; on the CPU and with its defaults unless options are given."""
    command = str(Path(sys.executable).with_name("logitport"))
    always = ["--listen", "127.0.0.1:0", "--enable-custom-logit-processor", "--log-level", "error"]
    with _running([command, "serve", *always, *(options or ("--device", "cpu"))]) as server:
        yield server


@contextmanager
def echo_server(script: str = "echo.py") -> Iterator[Server]:
    """Bare gRPC, or a bare Unix socket with `socket_echo.py`, which gives its own name for a target."""
    with _running([sys.executable, str(Path(__file__).with_name(script))]) as server:
        yield server


@contextmanager
def connected(*options: str) -> Iterator[tuple[Server, Client]]:
    """A logitport server with these options, and a client of it."""
    with logitport_server(*options) as server, Client(server.target, timeout=_TIMEOUT_SECONDS) as client:
        yield server, client


@contextmanager
def _running(command: list[str]) -> Iterator[Server]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            if not ready:
                sys.exit(f"{command[0]} did not start")
            yield Server(process, ready[-1])
        finally:
            process.terminate()
