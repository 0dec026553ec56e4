"""Server processes of logitport and of echoes, with their processor time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from logitport import Client
from logitport.core import compiled

_TIMEOUT_SECONDS = 60.0


class Server:
    """A running process.

    Attributes:
        target: HOST:PORT of its gRPC service.
    """

    def __init__(self, process: subprocess.Popen[str], target: str) -> None:
        self._process = process
        self.target = target

    def kill(self) -> None:
        """End it as a crash of its machine does."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Its processes: the front door, that which forks principals' processes, and these; without workers."""
        children: dict[int, list[int]] = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                children.setdefault(int(file.read_text().rpartition(")")[2].split()[1]), []).append(
                    int(file.parent.name)
                )
        forks = [child for child in children.get(self.pid, []) if _is_of_sessions(child)]
        return [self.pid, *forks, *(process for fork in forks for process in children.get(fork, []))]

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all their threads, in user and kernel mode."""
        # Linux's CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it; /proc/PID/stat counts in 10 ms.
        return sum(time.clock_gettime_ns((~process << 3) | 2) / 1e9 for process in self.pids)

    @property
    def resident_bytes(self) -> int:
        """Their memory: a page that several have counts in parts (Pss of proc_pid_smaps(5))."""
        return sum(map(_proportional_bytes, self.pids))


def _is_of_sessions(process: int) -> bool:
    return b"logitport_server.principal_process" in Path(f"/proc/{process}/cmdline").read_bytes()


def _proportional_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@contextmanager
def logitport_server(*options: str, pure_python: bool = False) -> Iterator[Server]:
    """Run `logitport serve` with shipped processors enabled; on the CPU and with defaults unless options are given."""
    command = str(Path(sys.executable).with_name("logitport"))
    always = ["--listen", "127.0.0.1:0", "--enable-custom-logit-processor", "--log-level", "error"]
    variables = {compiled.VARIABLE: "1"} if pure_python else compiled.environment()
    with _running([command, "serve", *always, *(options or ("--device", "cpu"))], **variables) as server:
        yield server


@contextmanager
def echo_server(transport: str) -> Iterator[Server]:
    """Run an echo over bare gRPC ("grpc"), or over a bare Unix socket ("local"), whose name is its target."""
    with _running([sys.executable, str(Path(__file__).with_name("echo.py")), transport]) as server:
        yield server


@contextmanager
def connected(*options: str, pure_python: bool = False) -> Iterator[tuple[Server, Client]]:
    """Run a logitport server with these options, and connect a client."""
    with (
        logitport_server(*options, pure_python=pure_python) as server,
        Client(server.target, timeout=_TIMEOUT_SECONDS) as client,
    ):
        yield server, client


@contextmanager
def _running(command: list[str], **variables: str) -> Iterator[Server]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    environment = kept | variables
    # A session of its own, as a service has: see `benchmarks.helper.Helper`.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            if not ready:
                sys.exit(f"{command[0]} did not start")
            yield Server(process, ready[-1])
        finally:
            process.terminate()
