"""Selects the executor for shipped processors from the server's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_runner.process_executor import ProcessExecutor
from logitport_sandbox import SandboxError
from logitport_sandbox.cgroups import open_cgroups
from logitport_server.executors.calls.worker import Deadlines
from logitport_server.executors.inline import InlineExecutor
from logitport_server.executors.worker_processes.worker_zygotes import limits_of, pythons_of
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.loader import PayloadLoader
from logitport_server.worker.start import start_first_zygote

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig
    from logitport_server.executors.base import Executor


def choose_executor(config: ServerConfig) -> Executor:
    """Create the executor for these options. Its zygotes start in the background.

    Raises:
        StartupError: shipped processors must be refused on this machine.
    """
    first = start_first_zygote(config)
    if first is None:
        return InlineExecutor(PayloadLoader())
    deadlines = Deadlines(call=config.processor_timeout_seconds, load=config.load_timeout_seconds)
    try:
        return ProcessExecutor(
            deadlines,
            config.quarantine_after,
            max_workers=config.max_workers,
            pythons=pythons_of(config),
            limits=limits_of(config),
            without=first.without,
            first=first,
            cgroups=open_cgroups(),
        )
    except (SandboxError, OSError) as error:
        raise StartupError(f"shipped processors cannot be isolated on this machine: {error}") from error
