"""A processor in a sandboxed worker that reads logits of a GPU: with the scope `cuda`, and without it.

With the scope, the worker edits memory of the GPU that it shares with the server. Without it, the rows are copied to
pinned memory of the host, processed on the CPU, and copied back. The floor of that is the same copies alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.cuda import TEMPERATURE
from benchmarks.gpu.contestants import Copies, Named
from benchmarks.gpu.races import Forward, race
from benchmarks.gpu.servers import connected_with, worker_calls
from benchmarks.gpu.workload_sizes import batch, steps
from benchmarks.measure import ratio

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job

_SCOPES = {"with the scope": ["apply", "register", "cuda"], "without the scope": ["apply", "register"]}
_WAYS = {"with the scope": "device", "without the scope": "host"}


def run(job: Job) -> None:
    """Measure both."""
    workload = batch(job, kinds=(TEMPERATURE,))
    forward = Forward(job.device, 1.0)
    fresh = workload.logits().to(job.device)
    for case, scopes in _SCOPES.items():
        with job.case(case), connected_with(scopes, job.device) as (server, client):
            service = Named(case, client, workload, "local", in_buffer=True, device=job.device)
            floor = Copies(workload, job.device, pinned=case == "without the scope")
            raced = race([floor, service], workload, forward, steps=steps(job, 3), device=job.device)
            for name, samples in raced.items():
                job.times(case, f"{name}: engine's thread", samples.host * 1e6)
                job.times(case, f"{name}: on the GPU", samples.stream * 1e6)
            job.ratio(case, f"÷ {floor.name}", ratio(raced[case].stream, raced[floor.name].stream))
            assert service.logits is not None
            service.logits.copy_(fresh)
            service.begin([5] * workload.rows)
            service.finish(service.logits)
            divided = fresh / TEMPERATURE.params["temperature"]
            close = torch.allclose(service.logits, divided, rtol=1e-6)
            job.check(f"{case}: logits", close, f"session's memory: {service.session.logits_memory}")
            if job.on_gpu:
                calls = worker_calls(server)
                job.check(f"{case}: memory of the rows", calls.get(_WAYS[case], 0) > 0, f"calls by memory: {calls}")
            service.close()
