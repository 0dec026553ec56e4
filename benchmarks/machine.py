"""The machine of the benchmarks, and the load of other processes."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

from logitport.core import compiled

_PACKAGES = ("logitport", "torch", "numpy", "grpcio", "protobuf", "transformers", "dill")


class Machine(NamedTuple):
    """One machine and its software.

    Attributes:
        core: "compiled" or "python", whichever computes the steps of client and server.
    """

    cpu: str
    cores: int
    memory_gib: int
    system: str
    python: str
    torch_threads: int
    versions: dict[str, str]
    core: str

    @property
    def slug(self) -> str:
        """A form for file names."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.cores} cores".lower().replace("(r)", "")).strip("-")

    @property
    def described(self) -> str:
        """The description in one line."""
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        core = {"compiled": "compiled core", "python": "pure Python"}[self.core]
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, {self.system}, "
            f"Python {self.python}, {self.torch_threads} torch threads; {packages}, {core}"
        )


def describe() -> Machine:
    """Describe this machine."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=re.sub(r"\s+", " ", model[1]) if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / 2**30),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        torch_threads=torch.get_num_threads(),
        versions={**{name: version(name) for name in _PACKAGES}, "SGLang": "0.5.23"},
        core=compiled.NAME,
    )


class Bystanders:
    """Measures how much processor time other processes use. Results from a busy machine mean little."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy, self._ours = busy_seconds(), _our_seconds()

    def share(self) -> float:
        """The share of all cores since this object was created, 0.0 to 1.0. Own children count once they end."""
        elapsed = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        others = (busy_seconds() - self._busy) - (_our_seconds() - self._ours)
        return max(0.0, others / elapsed)


def busy_seconds() -> float:
    """Processor time of all processes of the machine since its start."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    return sum(os.times()[:4])
