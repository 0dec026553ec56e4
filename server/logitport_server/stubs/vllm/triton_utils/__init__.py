"""Stub of vLLM's package of this name: Triton, where it is installed. Its kernels still need a GPU."""

from __future__ import annotations

from typing import Any

from ..config.vllm import Part
from ..utils.math_utils import cdiv, next_power_of_2

triton: Any
tl: Any
try:
    import triton  # type: ignore[import-untyped,no-redef]
    import triton.language as tl  # type: ignore[import-untyped,no-redef]
except ImportError:
    HAS_TRITON = False
    triton = Part("triton", cdiv=cdiv, next_power_of_2=next_power_of_2)
    tl = Part("triton.language")
else:
    HAS_TRITON = True

__all__ = ["HAS_TRITON", "tl", "triton"]
