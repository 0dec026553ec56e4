"""One job in its own process: `python -m benchmarks.gpu.job NAME`. What jobs share: sizes, servers and records."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from benchmarks.gpu.results import CORRECT, Line, append
from benchmarks.gpu.runner import RESULTS_VARIABLE
from benchmarks.machine import describe
from benchmarks.measure import Ratio
from benchmarks.peer_files import Missing
from benchmarks.workloads import Workload
from logitport import Client
from tests.conftest import RunningServer, run_server

_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """Arguments of a job.

    Attributes:
        name: of the part.
        folder: where results go.
        device: "cuda"; or "cpu", where a job runs as much as it can without a GPU.
        tiny: use small sizes and few steps, to see that the job runs.
    """

    name: str
    folder: Path
    device: str = "cuda"
    tiny: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device == "cuda"

    def batch(self, **fields: Any) -> Workload:
        """The workload of the bar with some fields, 64 rows of 151,936 ids; a tiny one for a tiny job."""
        workload = Workload(**fields)
        return replace(workload, rows=6, history=64, vocab_size=40_000) if self.tiny else workload

    def steps(self, count: int) -> int:
        """The number of steps of a round."""
        return 2 if self.tiny else count

    @contextmanager
    def connected(self, device: str, *options: str) -> Iterator[tuple[RunningServer, Client]]:
        """Run a server on a device, with the layers of the sandbox that this machine has, and connect a client."""
        with (
            run_server("--device", device, "--enable-custom-logit-processor", *options) as server,
            Client(server.target, timeout=_TIMEOUT_SECONDS) as client,
        ):
            yield server, client

    def times(self, case: str, quantity: str, microseconds: ArrayLike) -> float:
        """Record microseconds: their median, and their 10th and 90th percentiles. Returns the median."""
        low, median, high = map(float, np.percentile(microseconds, (10, 50, 90)))
        self.record(case, quantity, median, "µs", low=low, high=high)
        return median

    def ratio(self, case: str, quantity: str, ratio: Ratio, note: str = "") -> None:
        """Record a ratio with its spread."""
        self.record(case, quantity, ratio.value, low=ratio.low, high=ratio.high, note=note)

    def check(self, case: str, ok: object, note: str = "") -> None:
        """Record whether something is correct."""
        self.record(case, CORRECT, float(bool(ok)), note=note)

    def fact(self, case: str, quantity: str, note: object) -> None:
        """Record a fact in words."""
        self.record(case, quantity, note=str(note))

    def record(
        self,
        case: str,
        quantity: str,
        value: float | None = None,
        unit: str = "",
        *,
        low: float | None = None,
        high: float | None = None,
        note: str = "",
    ) -> None:
        """Record one line; see `Line`."""
        append(self.folder, Line(self.name, case, quantity, value, unit, low, high, note))

    @contextmanager
    def case(self, case: str) -> Iterator[None]:
        """Record an exception as the result of the case, and go on with the job. A missing peer is no failure."""
        try:
            yield
        except Missing as missing:
            self.fact(case, "not measured", missing)
        except Exception as error:  # noqa: BLE001 - one case must not cost the others
            traceback.print_exc()
            self.check(case, ok=False, note=f"{type(error).__name__}: {error}"[:500])


def main() -> None:
    """Run the job that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.job", description=__doc__)
    parser.add_argument("name", help="a module of benchmarks.gpu.jobs")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    folder = Path(os.environ.get(RESULTS_VARIABLE, "."))
    job = Job(options.name, folder, options.device, options.tiny)
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else "no GPU"
    job.fact("machine", "description", f"{describe().described}; CUDA {torch.version.cuda}, {gpu}")
    importlib.import_module(f"benchmarks.gpu.jobs.{options.name}").run(job)


if __name__ == "__main__":
    main()
