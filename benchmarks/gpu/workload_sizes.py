"""The batch of the jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job


def batch(job: Job, **fields: Any) -> Workload:
    """The workload of the bar with some fields, 64 rows of 151,936 ids; a tiny one for a tiny job."""
    workload = Workload(**fields)
    return replace(workload, rows=6, history=64, vocab_size=40_000) if job.tiny else workload


def steps(job: Job, count: int) -> int:
    """The number of steps of a round."""
    return 2 if job.tiny else count
