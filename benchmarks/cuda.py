"""On a GPU: `python -m benchmarks.cuda` measures steps in place, through pinned memory, and in SGLang.

The forward pass is a kernel that spins for 10 ms. Each contestant's `finish` is called right after that kernel is
launched, as in engines that schedule ahead. Two times are measured: the time of the engine's thread, and the time of
the GPU's stream from logits that are ready to logits that are processed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from benchmarks import report, suite
from benchmarks.contestants import InProcess, Service
from benchmarks.gpu.runner import RESULTS_VARIABLE
from benchmarks.gpu.timing import Forward, SGLangOnDevice, race
from benchmarks.kinds import TEMPERATURE
from benchmarks.machine import describe
from benchmarks.measure import Contestant, microseconds
from benchmarks.records import Row
from benchmarks.servers import connected
from benchmarks.workloads import Workload

_FORWARD_MILLISECONDS = 10.0
_STEPS = 20
_SHIPPED_HERE = ("--isolation", "none")  # in a sandbox a processor gets its rows on the host
_SERVERS = {
    "server on the GPU": ("--device", "cuda", *_SHIPPED_HERE),
    "server on the GPU, memory not shared": ("--device", "cuda", "--no-share-device-memory", *_SHIPPED_HERE),
    "server on the CPU": ("--device", "cpu", *_SHIPPED_HERE),
}
_RESULTS = Path(os.environ.get(RESULTS_VARIABLE) or suite.RESULTS / "cuda")


_WORKLOADS = {
    "the mix, logits-free": Workload(),
    "temperature on all rows": Workload(kinds=(TEMPERATURE,)),
    "temperature on every other row": Workload(kinds=(TEMPERATURE, None)),
}


def measure(case: str, workload: Workload, forward: Forward) -> Iterator[Row]:
    """Measure a workload."""
    with ExitStack() as stack:
        contestants: list[Contestant] = [SGLangOnDevice(workload, "cuda")]
        if TEMPERATURE not in workload.kinds:
            contestants.append(InProcess(workload))
        contestants += _services(workload, stack)
        raced = race(contestants, workload, forward, steps=_STEPS)
    for name, samples in raced.items():
        times = {"engine's thread": microseconds(samples.host), "GPU's stream": microseconds(samples.stream)}
        yield Row(case, name, times)


def _services(workload: Workload, stack: ExitStack) -> Iterator[Service]:
    """Sessions with servers of all kinds. Their names show where the logits actually were."""
    for server, options in _SERVERS.items():
        _, client = stack.enter_context(connected(*options))
        for in_buffer in (True, False):
            service = Service(client, workload, "local", in_buffer=in_buffer, device="cuda")
            stack.callback(service.close)
            memory = service.session.logits_memory or "none"
            service.name = f"{server}, logits {'in its buffer' if in_buffer else 'elsewhere'} (read in: {memory})"
            yield service


def main() -> None:
    """Run everything."""
    if not torch.cuda.is_available():
        sys.exit("there is no GPU that torch can use")
    machine = describe()
    machine = machine._replace(cpu=f"{machine.cpu}, {torch.cuda.get_device_name()}")
    forward = Forward("cuda", _FORWARD_MILLISECONDS)
    parts = {case: partial(measure, case, workload, forward) for case, workload in _WORKLOADS.items()}
    report.save(suite.run(parts, machine), _RESULTS)


if __name__ == "__main__":
    main()
