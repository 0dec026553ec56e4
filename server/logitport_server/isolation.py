"""Where this server runs what clients ship, as its operator wants it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_server.config import StartupError
from logitport_server.executors import Deadlines, InlineExecutor, ProcessExecutor
from logitport_server.loader import Loader
from logitport_server.sandbox import LayersMissing, Limits, SandboxError

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor

logger = logging.getLogger(__name__)


def choose_executor(config: ServerConfig) -> Executor:
    """The executor for this configuration; workers are started, and not waited for.

    Raises:
        StartupError: the machine lacks a layer of the sandbox.
    """
    if config.isolation == "none" or not config.enable_custom_logit_processor:
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
        )
    except (SandboxError, OSError) as error:
        hint = "\n--isolation none runs them in the server itself, which is for code that you would run yourself"
        raise StartupError(
            f"shipped processors cannot be contained here: {error}{hint if isinstance(error, LayersMissing) else ''}"
        ) from error


def announce(config: ServerConfig) -> str:
    """How shipped processors are treated, for the line that the server logs; what is dangerous is said loudly."""
    if not config.enable_custom_logit_processor:
        return "refused"
    if config.isolation == "process":
        return "accepted, and run in sandboxed processes"
    logger.warning(
        "--isolation none: whoever may ship a processor runs code as this server's user, with all that it may read, "
        "write and reach; a processor that hangs or crashes takes the server with it"
    )
    return "accepted, and run in this process"
