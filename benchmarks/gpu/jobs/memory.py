"""Where logits are that a processor in the server reads: in place on the GPU, in pinned host memory, or inline.

Each session must report the memory that its server's options leave it. The floors move the same bytes: a copy on the
GPU and back, and a copy to pinned memory and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.cuda import TEMPERATURE
from benchmarks.gpu.contestants import Copies, Named
from benchmarks.gpu.races import Forward, race
from benchmarks.gpu.servers import SHIPPED_HERE, connected
from benchmarks.gpu.workload_sizes import batch, steps

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job
    from benchmarks.workloads import Workload

# By name: the device of the server, its options, the transport, and the memory that a session reports with a GPU.
_PATHS = {
    "server on the GPU": ("cuda", (), "local", "device"),
    "server on the GPU, memory not shared": ("cuda", ("--no-share-device-memory",), "local", "host"),
    "server on the CPU": ("cpu", (), "local", "host"),
    "server on the GPU, gRPC": ("cuda", (), "grpc", "inline"),
}


def run(job: Job) -> None:
    """Measure each path."""
    workload = batch(job, kinds=(TEMPERATURE,))
    forward = Forward(job.device, 1.0)
    for case, pinned in (("floor: copy on the GPU and back", False), ("floor: copy to the host and back", True)):
        with job.case(case):
            _race(job, case, Copies(workload, job.device, pinned=pinned), workload, forward)
    for case, (device, options, transport, memory) in _PATHS.items():
        expected = memory if job.on_gpu or memory == "inline" else "host"
        server_device = device if job.on_gpu else "cpu"
        with job.case(case), connected(server_device, *SHIPPED_HERE, *options) as (_, client):
            for in_buffer in (True, False):
                where = f"{case}, logits {'in the buffer' if in_buffer else 'elsewhere'}"
                service = Named(where, client, workload, transport, in_buffer=in_buffer, device=job.device)
                _race(job, where, service, workload, forward)
                found = service.session.logits_memory
                job.check(where, found == expected, f"the session reports {found}; expected {expected}")
                service.close()


def _race(job: Job, case: str, contestant: Copies | Named, workload: Workload, forward: Forward) -> None:
    fresh = workload.logits().to(job.device)
    (samples,) = race([contestant], workload, forward, steps=steps(job, 4), device=job.device).values()
    job.times(case, "on the GPU", samples.stream * 1e6)
    job.times(case, "engine's thread", samples.host * 1e6)
    if isinstance(contestant, Named):
        logits = fresh.clone() if contestant.logits is None else contestant.logits.copy_(fresh)
        contestant.begin([5] * workload.rows)
        contestant.finish(logits)
        divided = fresh / TEMPERATURE.params["temperature"]
        job.check(case, torch.equal(logits, divided), "the processed logits are right")
