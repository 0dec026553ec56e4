"""The GPU of a worker that holds one."""

from __future__ import annotations

import importlib

from logitport.system.cuda_contract import CudaError
from logitport.system.cuda_ipc import Cuda


def open_gpu(name: str, uuid: bytes) -> Cuda:
    """Initialize CUDA for the server's GPU. This takes a fraction of a second.

    Args:
        name: the GPU as a torch device, such as "cuda:0". It has the same index in the server and in this process.
        uuid: the GPU's UUID.

    Raises:
        CudaError: the driver, `cuda-bindings` or torch's CUDA support is missing, or the UUID differs.
    """
    import torch

    device = torch.device(name)
    try:
        cuda = Cuda(device, importlib.import_module("cuda.bindings.driver"))
        torch.zeros(1, device=device)
    except Exception as error:
        raise CudaError(f"CUDA cannot be used: {error}") from error
    if cuda.uuid != uuid:
        raise CudaError(f"{device} is the GPU {cuda.uuid.hex()} in the worker, but {uuid.hex()} in the server")
    return cuda
