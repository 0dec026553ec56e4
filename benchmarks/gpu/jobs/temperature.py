"""A temperature on all rows, in place: as a program in the engine, and through the server, against torch's operator."""

from __future__ import annotations

import torch

from benchmarks.contestants import Service
from benchmarks.gpu import results
from benchmarks.gpu.job import Job
from benchmarks.gpu.timing import Forward, OnDevice, race
from benchmarks.kinds import TEMPERATURE
from benchmarks.measure import Contestant, ratio
from benchmarks.programs import TEMPERATURE as PROGRAM
from benchmarks.programs import InProgram
from benchmarks.workloads import Workload

_DTYPES = (torch.float32, torch.bfloat16)
_MILLISECONDS = 5.0
_SHIPPED_HERE = ("--isolation", "none")  # in a sandbox, a processor gets a copy of its rows


class TorchDivide(Contestant):
    """Torch's operator in place: one kernel that reads and writes every logit."""

    name = "torch's operator"

    def __init__(self, workload: Workload, device: str, temperature: float) -> None:
        self._temperatures = torch.full((workload.rows, 1), temperature, dtype=workload.dtype, device=device)

    def finish(self, logits: torch.Tensor) -> None:
        logits.div_(self._temperatures)


def run(job: Job) -> None:
    """Measure both dtypes."""
    forward = Forward(job.device, 1.0 if job.tiny else _MILLISECONDS)
    with job.connected(job.device, *_SHIPPED_HERE) as (_, client):
        for dtype in _DTYPES:
            case = str(dtype).removeprefix("torch.")
            workload = job.batch(dtype=dtype, kinds=(TEMPERATURE,))
            torchs = TorchDivide(workload, job.device, TEMPERATURE.params["temperature"])
            with job.case(f"{case}, program"):
                program = InProgram(job.batch(dtype=dtype, kinds=(PROGRAM,)))
                raced = race([torchs, program], workload, forward, steps=job.steps(12), device=job.device)
                _record(job, case, raced, program.name, results.PROGRAM_TO_TORCH)
            with job.case(f"{case}, server"):
                name = "through the server, in place"
                service = Service(client, workload, "local", name=name, in_buffer=True, device=job.device)
                raced = race([torchs, service], workload, forward, steps=job.steps(12), device=job.device)
                _record(job, case, raced, name, results.SERVER_TO_TORCH)
                job.fact(case, "memory of the logits", service.session.logits_memory)
                service.close()


def _record(job: Job, case: str, raced: dict[str, OnDevice], name: str, bar: str) -> None:
    """Record the times. The bar is that of the GPU's stream, behind a forward pass that hides the launches."""
    for contestant, samples in raced.items():
        job.times(case, f"{contestant}: on the GPU", samples.stream * 1e6)
        job.times(case, f"{contestant}: engine's thread", samples.host * 1e6)
    job.ratio(case, bar, ratio(raced[name].stream, raced[TorchDivide.name].stream))
