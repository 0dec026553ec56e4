"""The files of SGLang and vLLM that benchmarks compare with: where they are, and which a GPU machine needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / ".gpu-wheels"


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


def folder_of(variable: str) -> Path:
    """The folder of a peer: as the variable names it, beside the wheels, or of `make test-peers`. Raises Missing."""
    pattern, files = _PEERS[variable]
    carried = WHEELS / "peers" / files[0].partition("/")[0]
    candidates = [os.environ.get(variable, ""), carried, *sorted((ROOT / ".peers").glob(pattern), reverse=True)]
    for path in candidates:
        if path and Path(path, files[-1]).is_file():
            return Path(path)
    raise Missing(
        f"{variable} names no unpacked wheel, and there is none; `make test-peers` or `make gpu-wheels` fetch it"
    )


def carry(target: Path) -> None:
    """Copy the files of the peers to `target`. Raises Missing."""
    for variable, (_, files) in _PEERS.items():
        folder = folder_of(variable)
        for name in files:
            copy = target / name.partition("/")[0] / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, copy)
