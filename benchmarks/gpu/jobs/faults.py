"""Workers that break CUDA: a bad index, a kernel that does not end, and all of the GPU's memory.

Only the row of the faulty processor may be skipped. The engine and the server go on, other rows are right, and the
memory of the GPU is returned.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu.job import Job
from logitport import Client, CustomLogitProcessor, Request
from logitport.session import Session

_VOCAB_SIZE = 50_000
_TIMEOUT_SECONDS = 3.0
_RETURN_SECONDS = 15.0
_TOLERATED_BYTES = 64 << 20


class BadIndex(CustomLogitProcessor):
    """Reads out of bounds in a kernel, which breaks the process's CUDA context; on a CPU, torch raises."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        return logits[torch.full((len(logits),), 1 << 40, device=logits.device)]


class Endless(CustomLogitProcessor):
    """Launches a kernel that spins for an hour; on a CPU, sleeps."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        if not logits.is_cuda:
            time.sleep(3600)
        for _ in range(360):
            torch.cuda._sleep(20_000_000_000)
        return logits


class OutOfMemory(CustomLogitProcessor):
    """Allocates memory of the device until there is none."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        taken = []
        while True:
            taken.append(torch.ones(1 << 28, device=logits.device))


class Doubles(CustomLogitProcessor):
    """Multiplies its rows by two, in place."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        return logits.mul_(2)


def run(job: Job) -> None:
    """Try each fault on one server."""
    options = ("--processor-timeout-seconds", str(_TIMEOUT_SECONDS), "--load-timeout-seconds", "60")
    faults = {"bad index": BadIndex, "no memory": OutOfMemory, "endless kernel": Endless}
    if not job.on_gpu:
        del faults["no memory"]  # it would be the machine's
    with job.connected(job.device, *options) as (server, client):
        _step_alone(job, client)
        before = _used(job)
        for case, fault in faults.items():
            with job.case(case):
                _try(job, case, client, fault)
                job.check(f"{case}: the server", server.process.poll() is None, "runs")
                job.check(f"{case}: memory", *_returned(job, before))


def _try(job: Job, case: str, client: Client, fault: type[CustomLogitProcessor]) -> None:
    with _open(job, client) as session:
        bad = session.add(Request(processors=[(fault, {})], on_error="skip"))
        good = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        begin = time.perf_counter()
        logits = torch.full((2, _VOCAB_SIZE), 3.0, device=job.device)
        result = session.step({bad: (), good: ()}).apply(logits)
        job.record(case, "the step", time.perf_counter() - begin, "s")
        job.check(
            f"{case}: its own row", list(result.skipped) == [bad] and bool((logits[0] == 3.0).all()), "is skipped"
        )
        right = bool((logits[1, :7] == 3.0).all()) and logits[1, 7].item() == -torch.inf
        job.check(f"{case}: another row", right, "is right")
        session.remove(bad)
        session.remove(good)
        later = session.add(Request(processors=[(Doubles, {})]))
        logits = torch.full((1, _VOCAB_SIZE), 3.0, device=job.device)
        session.step({later: ()}).apply(logits)
        job.check(f"{case}: later steps", (logits == 6.0).all().item(), "are right, and the engine's CUDA works")


def _step_alone(job: Job, client: Client) -> None:
    """Start a worker, so that the memory of its context is counted before the faults."""
    with _open(job, client) as session:
        handle = session.add(Request(processors=[(Doubles, {})]))
        session.step({handle: ()}).apply(torch.full((1, _VOCAB_SIZE), 3.0, device=job.device))


def _open(job: Job, client: Client) -> Session:
    return client.session(vocab_size=_VOCAB_SIZE, dtype=torch.float32, device=job.device)


def _used(job: Job) -> int:
    if not job.on_gpu:
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def _returned(job: Job, before: int) -> tuple[bool, str]:
    deadline = time.monotonic() + _RETURN_SECONDS
    while (more := _used(job) - before) > _TOLERATED_BYTES and time.monotonic() < deadline:
        time.sleep(0.2)
    return more <= _TOLERATED_BYTES, f"{more / 2**20:+.0f} MiB of the GPU's memory"
