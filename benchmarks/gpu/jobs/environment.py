"""The machine: the driver, the GPU, the versions, and the packages of `logitport[server]` that are missing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch
from packaging.requirements import Requirement

from benchmarks.gpu.wheels import server_requirements
from logitport import compiled
from logitport_server.sandbox import LAYERS

if TYPE_CHECKING:
    from benchmarks.gpu.job import Job

_VERSIONS = ("torch", "triton", "transformers", "numpy", "grpcio", "protobuf", "cuda-bindings", "xgrammar", "dill")
_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,mig.mode.current",
    "--format=csv",
)


def run(job: Job) -> None:
    """Report."""
    job.fact("machine", "system", f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with job.case("driver"):
        asked = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=False)
        job.fact("driver", "nvidia-smi", (asked.stdout + asked.stderr).strip().rpartition("\n")[2])
    job.fact("torch", "built for", f"CUDA {torch.version.cuda}; available: {torch.cuda.is_available()}")
    if torch.cuda.is_available():
        _report_gpu(job)
    job.fact("packages", "versions", ", ".join(f"{name} {_version(name)}" for name in _VERSIONS))
    job.fact("packages", "the step's core", compiled.describe())
    job.fact("packages", "missing for logitport[server]", ", ".join(_missing()) or "none")
    for layer in LAYERS:
        job.fact("sandbox", layer.name, layer.missing() or "present")


def _report_gpu(job: Job) -> None:
    found = torch.cuda.get_device_properties(0)
    job.fact(
        "GPU",
        "properties",
        f"{found.name}, {found.total_memory / 2**30:.1f} GiB, {found.multi_processor_count} multiprocessors, "
        f"compute capability {found.major}.{found.minor}",
    )
    with job.case("sharing memory"):
        from logitport.core.cuda_ipc import open_cuda

        job.check("sharing memory", open_cuda(torch.device("cuda")), "cuda-bindings open the GPU")
    with job.case("Triton"):
        from benchmarks.gpu.jobs.edits import warm_up

        warm_up()
        job.check("Triton", ok=True, note="the kernel of edits compiles and runs")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _missing() -> list[str]:
    return [name for text in server_requirements() if _version(name := Requirement(text).name) == "missing"]
