"""What callers of `logitport.system.cuda_ipc` need where torch, which that module imports, is not installed."""

from __future__ import annotations

HANDLE_BYTES = 64  # of cudaIpcMemHandle_t and of cudaIpcEventHandle_t


class CudaError(RuntimeError):
    """A CUDA call failed; the message names the function and CUDA's error."""
