"""The mix of three built-ins against SGLang's processors in process, on one GPU, with histories of 4k and 32k ids.

Exposed is the time of the GPU's stream from logits that are ready to logits that are processed, behind a forward pass
of 10 ms. SGLang's processors compute on the host as soon as the forward pass is launched.
"""

from __future__ import annotations

from benchmarks.contestants import InProcess, Service, close_all
from benchmarks.gpu import results
from benchmarks.gpu.job import Job
from benchmarks.gpu.timing import Forward, SGLangOnDevice, race
from benchmarks.measure import ratio

_MILLISECONDS = 10.0


def run(job: Job) -> None:
    """Measure both lengths."""
    forward = Forward(job.device, 1.0 if job.tiny else _MILLISECONDS)
    with job.connected("cpu") as (_, client):
        for case, history, bar in (("4k", 4096, results.EXPOSED_4K), ("32k", 32_768, results.EXPOSED_32K)):
            with job.case(case):
                workload = job.batch(history=history)
                peer = SGLangOnDevice(workload, job.device)
                service = Service(client, workload, "local", device=job.device)
                contestants = [peer, InProcess(workload), service]
                raced = race(contestants, workload, forward, steps=job.steps(6), device=job.device)
                close_all(contestants)
                for name, samples in raced.items():
                    job.times(case, f"{name}: exposed", samples.stream * 1e6)
                    job.times(case, f"{name}: engine's thread", samples.host * 1e6)
                job.ratio(case, bar, ratio(raced[service.name].stream, raced[peer.name].stream))
