"""Checks of the logits' dtype and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def check_tensor(logits: torch.Tensor) -> None:
    """Raise InvalidArgument unless the tensor is float32, float16 or bfloat16."""
    import torch

    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidArgument(f"logits are a tensor of {logits.dtype}; pass one of float32, float16 or bfloat16")


def check_array(logits: NDArray[Any]) -> NDArray[Any]:
    """Return the array. Raises InvalidArgument unless it is writable float32, float16 or ml_dtypes' bfloat16."""
    if logits.dtype.name not in ("float32", "float16", "bfloat16"):
        raise InvalidArgument(f"logits are an array of {logits.dtype}; pass one of float32, float16 or bfloat16")
    if not logits.flags.writeable:
        raise InvalidArgument("logits are a read-only array; pass a writable one, such as a copy")
    return logits
