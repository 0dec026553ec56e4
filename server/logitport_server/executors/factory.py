"""Where this server runs what clients ship, as its operator wants it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport.core.cuda_ipc import open_cuda
from logitport_server.config import StartupError
from logitport_server.executors import Deadlines, Gpu, InlineExecutor, ProcessExecutor
from logitport_server.principals import CUDA
from logitport_server.registry.loader import Loader
from logitport_server.sandbox import LayersMissing, Limits, SandboxError
from logitport_server.sandbox.gpu import device_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor

logger = logging.getLogger(__name__)


def gpu_for_workers(config: ServerConfig, device: torch.device, grants: Callable[[str, str], bool]) -> Gpu | None:
    """The server's GPU, for workers of authors with the scope `cuda`; None where there is none that can be shared.

    Args:
        config: the operator's.
        device: where the server processes logits.
        grants: whether the principal of this name has a scope.
    """
    if device.type != "cuda" or not _has_workers(config):
        return None
    cuda, nodes = open_cuda(device), device_nodes()
    if cuda is None or not nodes:
        lacking = "it cannot be shared (cuda-bindings)" if cuda is None else "there are no device nodes of it"
        logger.warning("no worker will hold %s, whoever has the scope cuda: %s", device, lacking)
    return None if cuda is None else Gpu(cuda, nodes, lambda name: grants(name, CUDA))


def choose_executor(config: ServerConfig, gpu: Gpu | None = None) -> Executor:
    """The executor for this configuration; workers are started, and not waited for.

    Args:
        config: the operator's.
        gpu: as `gpu_for_workers` gave it.

    Raises:
        StartupError: the machine lacks a layer of the sandbox.
    """
    if not _has_workers(config):
        return InlineExecutor(Loader(config.loader_cache_size))
    deadlines = Deadlines(call=config.processor_timeout_seconds, load=config.load_timeout_seconds)
    limits = Limits(
        memory_bytes=config.worker_memory_bytes,
        region_bytes=2 * config.max_region_bytes,
        threads=config.worker_threads,
    )
    pythons = dict(option.split("=", 1) for option in config.worker_python)
    try:
        return ProcessExecutor(
            deadlines,
            config.quarantine_after,
            max_workers=config.max_workers,
            pythons=pythons,
            limits=limits,
            without=config.without_layer,
            gpu=gpu,
        )
    except (SandboxError, OSError) as error:
        hint = "\n--isolation none runs them in the server itself, which is for code that you would run yourself"
        raise StartupError(
            f"shipped processors cannot be contained here: {error}{hint if isinstance(error, LayersMissing) else ''}"
        ) from error


def announce(config: ServerConfig, gpu: Gpu | None = None) -> str:
    """How shipped processors are treated, for the line that the server logs; what is dangerous is said loudly."""
    if not config.enable_custom_logit_processor:
        return "refused"
    if _has_workers(config):
        return "accepted, and run in sandboxed processes" + (_told_of(gpu, config) if gpu and gpu.nodes else "")
    logger.warning(
        "--isolation none: whoever may ship a processor runs code as this server's user, with all that it may read, "
        "write and reach; a processor that hangs or crashes takes the server with it"
    )
    return "accepted, and run in this process"


def _has_workers(config: ServerConfig) -> bool:
    return config.enable_custom_logit_processor and config.isolation == "process"


def _told_of(gpu: Gpu, config: ServerConfig) -> str:
    whose = "authors with the scope cuda" if config.asks else "everyone, for nobody is asked who they are,"
    return f"; those of {whose} hold {gpu.cuda.device}, and such a process cannot be fully contained"
