"""The files of SGLang and vLLM that jobs compare with: which are carried, and where they are.

A job that needs files which are not there says so in one line. The others run.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.gpu.python import ROOT, WHEELS


class Missing(Exception):
    """A peer is not there; the message says which, and how to get it."""


# Paths below the folder of the unpacked wheel. Modules that these import, and that are not listed, are replaced.
SGLANG = (
    "sglang/__init__.py",
    "sglang/srt/environ.py",
    "sglang/srt/layers/sampler.py",
    "sglang/srt/sampling/custom_logit_processor.py",
    "sglang/srt/sampling/sampling_batch_info.py",
    "sglang/srt/utils/async_probe.py",
)
VLLM = (
    "vllm/__init__.py",
    "vllm/v1/worker/gpu/structured_outputs.py",
)
# By name of the variable that names the folder: the folders of a checkout, the newest version last, and the files.
_PEERS = {
    "LOGITPORT_SGLANG": ("sglang", SGLANG),
    "LOGITPORT_VLLM": ("vllm-*", VLLM),
}


def variables() -> dict[str, str]:
    """The variables that name the folders of peers: as they are set, beside the wheels, or of `make test-peers`."""
    found = {}
    for variable, (pattern, files) in _PEERS.items():
        name = files[0].partition("/")[0]
        candidates = [os.environ.get(variable, ""), WHEELS / "peers" / name, *_unpacked(pattern)]
        folder = next((Path(path) for path in candidates if path and Path(path, files[-1]).is_file()), None)
        if folder is not None:
            found[variable] = str(folder)
    return found


def folder_of(variable: str) -> Path:
    """The folder of a peer. Raises Missing."""
    folder = variables().get(variable)
    if folder is None:
        raise Missing(f"{variable} names no unpacked wheel; `make gpu-wheels` fetches it")
    return Path(folder)


def carry(target: Path) -> int:
    """Copy the files of the peers that are there to `target`. Returns the number of bytes."""
    size = 0
    for variable, (pattern, files) in _PEERS.items():
        candidates = [Path(os.environ.get(variable, "/nonexistent")), *_unpacked(pattern)]
        folder = next((path for path in candidates if Path(path, files[-1]).is_file()), None)
        if folder is None:
            raise Missing(f"{variable} names no unpacked wheel, and .peers has none; `make test-peers` fetches it")
        for name in files:
            copy = target / name.partition("/")[0] / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, copy)
            size += copy.stat().st_size
    return size


def _unpacked(pattern: str) -> list[Path]:
    return sorted((ROOT / ".peers").glob(pattern), reverse=True)
