"""Servers on one core under load, and the processor time that they and others use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fleet_sim.load import Latencies
from benchmarks.measure import LOWER_QUARTILE
from benchmarks.pinning import pin
from benchmarks.servers import logitport_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.fleet_sim.load import Load
    from benchmarks.servers import Server

_SERVER_CORE, LOAD_CORE = 0, 1


def quartile(values: list[float]) -> float:
    return float(np.quantile(values, LOWER_QUARTILE))


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def under_load(server: Server, load: Load) -> tuple[Latencies, float, float, float]:
    """Run a load.

    Returns:
        What it received; seconds; processor seconds of the server, and of others on its core.
    """
    command = [sys.executable, "-m", "benchmarks.fleet_sim.load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

        send(json.dumps(load._asdict()))
        assert process.stdout.readline() == "open\n"
        before = server.cpu_seconds, _busy(_SERVER_CORE), time.perf_counter()
        send("")
        assert process.stdout.readline() == "done\n"
        after = server.cpu_seconds, _busy(_SERVER_CORE), time.perf_counter()
        send("")
        latencies = Latencies(**json.loads(process.stdout.read()))
    used, busy, seconds = (late - early for early, late in zip(before, after, strict=True))
    return latencies, seconds, used, max(0.0, busy - used)


def _busy(core: int) -> float:
    """Processor time of all processes on one core since the machine's start."""
    (line,) = [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} ")]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextmanager
def pinned(*options: str) -> Iterator[Server]:
    with logitport_server(*options) as server:
        pin(server.pid, {_SERVER_CORE})
        yield server
