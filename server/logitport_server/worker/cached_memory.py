"""GPU memory that torch keeps for later tensors of a worker."""

from __future__ import annotations

import sys
import traceback

from logitport_server.dialects import failures


def release_after(error: BaseException) -> None:
    """Return the memory to the GPU, if the error is that the GPU had none left.

    Otherwise the worker would keep what the failed call has reserved, and the engine and other workers would lack it.
    Call it when the traceback is not needed any more: its frames are cleared, because torch returns only memory that
    no tensor uses.
    """
    torch = sys.modules.get("torch")  # processors that are edits need no torch
    if torch is None or not torch.cuda.is_initialized():
        return
    causes = list(failures.chain(error))
    if any(isinstance(cause, torch.cuda.OutOfMemoryError) for cause in causes):
        for cause in causes:
            traceback.clear_frames(cause.__traceback__)
        torch.cuda.empty_cache()
