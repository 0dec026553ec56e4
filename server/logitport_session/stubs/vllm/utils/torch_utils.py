"""Stub of vLLM's module of this name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np

PIN_MEMORY = False


def async_tensor_h2d(
    data: list[Any] | np.ndarray[Any, Any] | torch.Tensor,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy the data to a tensor on the device, or to `out`."""
    if out is not None:
        return out.copy_(torch.as_tensor(data, dtype=dtype or out.dtype))
    return torch.as_tensor(data).to(device=device, dtype=dtype, copy=True)
