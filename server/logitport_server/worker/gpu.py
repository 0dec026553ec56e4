"""The GPU, in a worker that holds one."""

from __future__ import annotations

import importlib

from logitport.core.cuda_ipc import Cuda, CudaError


def open_gpu(index: int, uuid: bytes) -> Cuda:
    """The server's GPU, which CUDA is started for: a fraction of a second.

    Args:
        index: as the server counts GPUs, and CUDA does here.
        uuid: the GPU's.

    Raises:
        CudaError: there is no driver or no `cuda-bindings` here, torch has no CUDA, or it is another GPU.
    """
    import torch

    device = torch.device("cuda", index)
    try:
        cuda = Cuda(device, importlib.import_module("cuda.bindings.driver"))
        torch.zeros(1, device=device)
    except Exception as error:
        raise CudaError(f"CUDA cannot be used: {error}") from error
    if cuda.uuid != uuid:
        raise CudaError(f"{device} is the GPU {cuda.uuid.hex()} here, and {uuid.hex()} in the server")
    return cuda
