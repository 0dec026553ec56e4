"""Checks of what a logits-reading processor returns."""

from __future__ import annotations

import torch

from logitport.errors import ProcessorFailed


def check_result(result: object, shape: torch.Size, processor: str) -> None:
    """Raise ProcessorFailed unless the result is a dense floating-point tensor of this shape."""
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


def rows_with_nan(logits: torch.Tensor) -> list[int]:
    """Rows of float[rows, vocab_size] that hold a NaN, ascending; sampling from such a row can crash an engine.

    Always empty for logits on a GPU: reading them would wait for the device.
    """
    if logits.device.type != "cpu" or not logits.numel():
        return []
    rows: list[int] = logits.amax(dim=1).isnan().nonzero().flatten().tolist()
    return rows
