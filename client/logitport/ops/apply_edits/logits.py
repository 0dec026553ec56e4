"""Which logits edits can be applied to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidLogits

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def check_tensor(logits: torch.Tensor) -> None:
    """Raise InvalidLogits unless the tensor is float32, float16 or bfloat16."""
    import torch

    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidLogits(f"logits are a tensor of {logits.dtype}; pass one of float32, float16 or bfloat16")


def check_array(logits: NDArray[Any]) -> NDArray[Any]:
    """The array; raise InvalidLogits unless it is float32, float16 or ml_dtypes' bfloat16, and can be written to."""
    if logits.dtype.name not in ("float32", "float16", "bfloat16"):
        raise InvalidLogits(f"logits are an array of {logits.dtype}; pass one of float32, float16 or bfloat16")
    if not logits.flags.writeable:
        raise InvalidLogits("logits are a read-only array; pass one that can be written to, such as a copy")
    return logits
