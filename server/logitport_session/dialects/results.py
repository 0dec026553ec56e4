"""Checks of what a logits-reading processor returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed

if TYPE_CHECKING:
    import torch


def check_result(result: object, shape: torch.Size, processor: str) -> None:
    """Raise ProcessorFailed unless the result is a dense floating-point tensor of this shape."""
    import torch

    if not isinstance(result, torch.Tensor):
        wrong = type(result).__name__
    elif result.shape != shape:
        wrong = f"a tensor of shape {list(result.shape)}"
    elif not result.is_floating_point():
        wrong = f"a tensor of dtype {result.dtype}"
    elif result.layout != torch.strided or result.is_meta:
        wrong = f"a tensor of layout {result.layout} on device {result.device}"
    else:
        return
    raise ProcessorFailed(
        f"processor {processor} returned {wrong}; return the logits, a floating-point tensor of shape {list(shape)}",
        processor=processor,
    )
