"""Platforms: what a device belongs to, and which of them this machine has. torch is imported where one is met."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np

from logitport.errors import InvalidLogits

PLATFORMS = ("cpu", "cuda", "hip", "xpu", "tpu", "oot")

# torch calls AMD's devices "cuda", and TPUs "xla". Whatever it knows besides is out of tree.
_BY_DEVICE_TYPE = {"cpu": "cpu", "cuda": "cuda", "xpu": "xpu", "xla": "tpu"}


def device_of(logits: Any) -> Any:
    """The torch.device of a tensor; "cpu" for a numpy array. Raises InvalidLogits for anything else."""
    try:
        return "cpu" if isinstance(logits, np.ndarray) else logits.device
    except AttributeError:
        raise InvalidLogits(f"logits are a {type(logits).__name__}; pass a torch tensor or a numpy array") from None


def platform_of(device: Any) -> str:
    """The platform of a torch.device, or of its name."""
    kind = str(device).partition(":")[0]
    if kind == "cuda" and sys.modules["torch"].version.hip:
        return "hip"
    return _BY_DEVICE_TYPE.get(kind, "oot")


def present() -> frozenset[str]:
    """The platforms that this machine has. Imports torch, if it is installed."""
    found = {"cpu"}
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            found.add(platform_of("cuda"))
        if torch.xpu.is_available():
            found.add("xpu")
        if find_spec("torch_xla") is not None:
            found.add("tpu")
        backend = getattr(torch, torch._C._get_privateuse1_backend_name(), None)
        if backend is not None and backend.is_available():
            found.add("oot")
    return frozenset(found)
