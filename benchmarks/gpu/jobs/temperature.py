"""A temperature on all rows, in place: as a program in the engine, and through the server, against torch's operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.cuda import TEMPERATURE
from benchmarks.gpu import bars
from benchmarks.gpu.contestants import Named, TorchDivide
from benchmarks.gpu.races import Forward, race
from benchmarks.gpu.servers import SHIPPED_HERE, connected
from benchmarks.gpu.workload_sizes import batch, steps
from benchmarks.measure import ratio
from benchmarks.program_kinds import TEMPERATURE as PROGRAM
from benchmarks.programs import InProgram

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job
    from benchmarks.gpu.races import OnDevice

_DTYPES = (torch.float32, torch.bfloat16)
_MILLISECONDS = 5.0


def run(job: Job) -> None:
    """Measure both dtypes."""
    forward = Forward(job.device, 1.0 if job.tiny else _MILLISECONDS)
    with connected(job.device, *SHIPPED_HERE) as (_, client):
        for dtype in _DTYPES:
            case = str(dtype).removeprefix("torch.")
            workload = batch(job, dtype=dtype, kinds=(TEMPERATURE,))
            torchs = TorchDivide(workload, job.device, TEMPERATURE.params["temperature"])
            with job.case(f"{case}, program"):
                program = InProgram(batch(job, dtype=dtype, kinds=(PROGRAM,)))
                raced = race([torchs, program], workload, forward, steps=steps(job, 12), device=job.device)
                _record(job, case, raced, program.name, bars.PROGRAM_TO_TORCH)
            with job.case(f"{case}, server"):
                name = "through the server, in place"
                service = Named(name, client, workload, "local", in_buffer=True, device=job.device)
                raced = race([torchs, service], workload, forward, steps=steps(job, 12), device=job.device)
                _record(job, case, raced, name, bars.SERVER_TO_TORCH)
                job.fact(case, "memory of the logits", service.session.logits_memory)
                service.close()


def _record(job: Job, case: str, raced: dict[str, OnDevice], name: str, bar: str) -> None:
    """Record the times. The bar is that of the GPU's stream, behind a forward pass that hides the launches."""
    for contestant, samples in raced.items():
        job.times(case, f"{contestant}: on the GPU", samples.stream * 1e6)
        job.times(case, f"{contestant}: engine's thread", samples.host * 1e6)
    job.ratio(case, bar, ratio(raced[name].stream, raced[TorchDivide.name].stream))
