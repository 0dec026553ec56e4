"""The prices of programs on this device, as they are measured for the limit of a program's time."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np

from logitport.programs.cost.prices import prices

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job


def run(job: Job) -> None:
    """Measure them anew, in an empty cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as cache, job.case("prices"):
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            begin = time.perf_counter()
            found = prices(job.device)
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
        job.record("prices", "time to measure them", time.perf_counter() - begin, "s")
        calls = np.array([price.call for price in found.operators.values()])
        elements = np.array([price.unit for price in found.operators.values()])
        job.record("prices", "a call, the median operator", float(np.median(calls)), "ns")
        job.record("prices", "a unit of work, the highest of an operator", float(elements.max()), "ns")
        job.record("prices", "a byte", found.byte, "ns")
