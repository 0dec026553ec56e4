"""The machine: the driver, the GPU, the versions, and the packages of `logitport[server]` that are missing."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch
from packaging.requirements import Requirement

from benchmarks.gpu.job import Job
from benchmarks.gpu.wheels import server_requirements
from logitport import compiled
from logitport_server.sandbox import LAYERS

_VERSIONS = ("torch", "triton", "transformers", "numpy", "grpcio", "protobuf", "cuda-bindings", "xgrammar", "dill")
_QUERY = "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,mig.mode.current"


def run(job: Job) -> None:
    """Report."""
    job.fact("machine", "system", f"{platform.platform()}, Python {platform.python_version()}")
    with job.case("driver"):
        command = ["nvidia-smi", _QUERY, "--format=csv"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        job.fact("driver", "nvidia-smi", (asked.stdout + asked.stderr).strip().rpartition("\n")[2])
    job.fact("torch", "built for", f"CUDA {torch.version.cuda}; available: {torch.cuda.is_available()}")
    if torch.cuda.is_available():
        job.fact("GPU", "properties", torch.cuda.get_device_properties(0))
        with job.case("sharing memory"):
            from logitport.core.cuda_ipc import open_cuda

            job.check("sharing memory", open_cuda(torch.device("cuda")), "cuda-bindings open the GPU")
        with job.case("Triton"):
            from benchmarks.gpu.jobs.edits import warm_up

            warm_up()
            job.check("Triton", ok=True, note="the kernel of edits compiles and runs")
    job.fact("packages", "versions", ", ".join(f"{name} {_version(name)}" for name in _VERSIONS))
    job.fact("packages", "the step's core", compiled.describe())
    missing = [name for text in server_requirements() if _version(name := Requirement(text).name) == "missing"]
    job.fact("packages", "missing for logitport[server]", ", ".join(missing) or "none")
    for layer in LAYERS:
        job.fact("sandbox", layer.name, layer.missing() or "present")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
