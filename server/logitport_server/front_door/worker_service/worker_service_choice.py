"""Creates the service for workers from the server's options. Imports no torch."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from logitport_sandbox import SandboxError
from logitport_sandbox.cgroups import open_cgroups
from logitport_sandbox.gpu_files import device_nodes
from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes, limits_of, pythons_of
from logitport_server.front_door.worker_service.lending_service import LendingService
from logitport_server.front_door.worker_service.worker_service import WorkerService
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.worker.start import start_first_zygote

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.config import ServerConfig
    from logitport_server.worker.start import StartedZygote

logger = logging.getLogger(__name__)


def worker_service_of(
    config: ServerConfig, first: StartedZygote | None, grants: Callable[[str, str], bool]
) -> WorkerService:
    """Create the service for these options. Its zygotes start in the background.

    Args:
        config: the options.
        first: the result of `start_first_zygote`, if it was called already.
        grants: returns whether the principal of a name has a scope.

    Raises:
        StartupError: shipped processors must be refused on this machine.
    """
    first = first or start_first_zygote(config)
    if first is None:
        return WorkerService(config)
    nodes = _nodes(config)
    try:
        zygotes = WorkerZygotes(
            pythons=pythons_of(config),
            limits=limits_of(config),
            without=first.without,
            nodes=nodes,
            first=first,
            cgroups=open_cgroups(),
        )
    except (SandboxError, OSError) as error:
        raise StartupError(f"shipped processors cannot be isolated on this machine: {error}") from error
    return LendingService(config, zygotes, grants, nodes)


def _nodes(config: ServerConfig) -> tuple[str, ...]:
    """Return the device nodes of the GPU that workers may hold. Empty without a GPU, or if it cannot be shared."""
    if config.device == "cpu":
        return ()
    nodes = device_nodes()
    if nodes and (find_spec("cuda") is None or find_spec("cuda.bindings") is None):
        logger.warning("no worker will hold a GPU: its memory cannot be shared (install cuda-bindings)")
        return ()
    return nodes
