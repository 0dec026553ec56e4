"""`logitport serve --processes`: several servers, each in a process of its own, started and ended together."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from logitport_server import addresses
from logitport_server.config import StartupError
from logitport_server.processes.metrics import FleetMetrics
from logitport_server.processes.single import prevent_core_files
from logitport_server.processes.supervisor import Rules, Supervisor, end_seconds
from logitport_server.transports.binding import binding
from logitport_server.transports.readiness import report
from logitport_server.transports.runtime_folder import RuntimeFolder

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)


def serve_several(config: ServerConfig) -> int:
    """Run `config.processes` servers until SIGTERM or SIGINT. Returns the exit status of the command.

    Without a store, the servers have a temporary one: otherwise a registration would reach one of them.

    Raises:
        StartupError: the metrics cannot be served, or the temporary store not be written.
    """
    prevent_core_files()
    config.start_logging()
    with ExitStack() as stack:
        if config.store is None:
            try:
                folder = RuntimeFolder()
            except OSError as error:
                raise StartupError(f"cannot create a temporary store: {error}; give --store") from error
            stack.callback(folder.close)
            config = config.model_copy(update={"store": str(folder.path / "store")})
        return asyncio.run(_supervise(config))


def server_configs(config: ServerConfig) -> list[ServerConfig]:
    """Return the options of each server."""
    return [
        config.model_copy(
            update={
                "processes": 1,
                "listen": addresses.nth(config.listen, number),
                "advertise": None if config.advertise is None else addresses.nth(config.advertise, number),
                "metrics_listen": "127.0.0.1:0",  # for the parent, which also checks the server there
            }
        )
        for number in range(config.processes)
    ]


async def _supervise(config: ServerConfig) -> int:
    servers = [Supervisor(each, Rules(end_seconds=end_seconds(each))) for each in server_configs(config)]
    running: list[asyncio.Future[int]] = []
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    threads = ThreadPoolExecutor(len(servers), "logitport-supervisor")

    def stop() -> None:
        if stopping.is_set():
            for server in servers:
                server.signal(signal.SIGTERM)
            return
        stopping.set()
        logger.info("stopping: all servers drain; a second signal ends them at once")
        for server in servers:
            server.drain()

    def reload_files() -> None:
        for server in servers:
            server.signal(signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload_files)
    try:
        # The first one alone: what prevents a start is reported once, and the others find what it has prepared.
        for group in (servers[:1], servers[1:]):
            running += [loop.run_in_executor(threads, server.run) for server in group]
            if not all(await asyncio.gather(*(asyncio.wrap_future(server.is_ready) for server in group))):
                return int(not stopping.is_set())
        if config.metrics_listen is not None:
            with binding("--metrics-listen", config.metrics_listen):
                port = FleetMetrics(servers).listen(config.metrics_listen)
            logger.info("metrics on port %d", port)
        report([server.address for server in servers])
        return int(any(await asyncio.gather(*running)))
    finally:
        for server in servers:
            server.drain()
        await asyncio.gather(*running, return_exceptions=True)
        threads.shutdown()
