"""Selects the executor for shipped processors from the server's options."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport.core.cuda_ipc import open_cuda
from logitport_server.config import StartupError
from logitport_server.executors import Deadlines, Gpu, InlineExecutor, ProcessExecutor
from logitport_server.executors.worker_zygotes import limits_of, pythons_of
from logitport_server.registry.loader import Loader
from logitport_server.sandbox import SandboxError
from logitport_server.sandbox.cgroups import open_cgroups
from logitport_server.sandbox.gpu import device_nodes
from logitport_server.worker.start import start_first_zygote
from logitport_session.principals import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)

# Classes that stay loaded with `--isolation none`. Loading one takes milliseconds, and its globals take memory.
_LOADER_CACHE_SIZE = 128


def gpu_for_workers(config: ServerConfig, device: torch.device, grants: Callable[[str, str], bool]) -> Gpu | None:
    """Return the server's GPU for workers of authors with the scope `cuda`; None if it cannot be shared.

    `grants` returns whether the principal of a name has a scope.
    """
    if device.type != "cuda" or not config.has_workers:
        return None
    cuda, nodes = open_cuda(device), device_nodes()
    if cuda is None or not nodes:
        reason = "its memory cannot be shared (install cuda-bindings)" if cuda is None else "it has no device nodes"
        logger.warning("no worker will hold %s, even with the scope cuda: %s", device, reason)
    return None if cuda is None else Gpu(cuda, nodes, lambda name: grants(name, CUDA))


def choose_executor(config: ServerConfig, gpu: Gpu | None = None, first: StartedZygote | None = None) -> Executor:
    """Create the executor for these options. Its zygotes start in the background.

    `gpu` is the result of `gpu_for_workers`, and `first` of `start_first_zygote`, if it was called already.

    Raises:
        StartupError: shipped processors must be refused on this machine.
    """
    first = first or start_first_zygote(config)
    if first is None:
        return InlineExecutor(Loader(_LOADER_CACHE_SIZE))
    deadlines = Deadlines(call=config.processor_timeout_seconds, load=config.load_timeout_seconds)
    try:
        return ProcessExecutor(
            deadlines,
            config.quarantine_after,
            max_workers=config.max_workers,
            pythons=pythons_of(config),
            limits=limits_of(config),
            without=first.without,
            gpu=gpu,
            first=first,
            cgroups=open_cgroups(),
        )
    except (SandboxError, OSError) as error:
        raise StartupError(f"shipped processors cannot be isolated on this machine: {error}") from error


def announce(config: ServerConfig, gpu: Gpu | None = None) -> str:
    """Return how shipped processors are run, for the start-up log. Logs a warning for --isolation none."""
    if not config.enable_custom_logit_processor:
        return "refused"
    if config.has_workers:
        return "accepted, and run in sandboxed processes" + (_gpu_holders(gpu, config) if gpu and gpu.nodes else "")
    logger.warning(
        "--isolation none: every client that may ship processors can run code as this server's user, with access to "
        "its files and network; a processor that hangs or crashes stops the server"
    )
    return "accepted, and run in this process"


def _gpu_holders(gpu: Gpu, config: ServerConfig) -> str:
    authors = "authors with the scope cuda" if config.requires_authentication else "all authors (authentication is off)"
    return f"; processes of {authors} hold {gpu.cuda.device} and so cannot be fully contained"
