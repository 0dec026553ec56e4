"""Runs one server until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from logitport.core import compiled
from logitport.errors import LogitportError
from logitport.system.variables import OF_THE_SDK, unread
from logitport_server.config.sources import VARIABLES
from logitport_server.lifecycle import collector, service_manager
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.lifecycle.stop_signals import StoppedBeforeReady, StopSignals
from logitport_server.server import Server
from logitport_server.version import VERSION
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport_server.config import ServerConfig
    from logitport_server.front_door.launched import Launched
    from logitport_server.transports.readiness import ReadyServer

logger = logging.getLogger(__name__)


def run(
    config: ServerConfig,
    processors: Iterable[object] = (),
    launched: Launched | None = None,
    on_ready: Callable[[ReadyServer], None] | None = None,
    signals: StopSignals | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. A start-up error is printed in one line, and the process exits with status 1.

    A signal that is received before the server is ready ends the process by that signal.

    Args:
        config: the options of `logitport serve`.
        processors: see `Server`.
        launched: see `Server`.
        on_ready: called when the server is ready. By default the address is printed.
        signals: caught since the start, if it has begun already.
    """
    signals = signals or StopSignals()
    config.start_logging()
    descriptors.raise_limit()
    for variable in unread({*OF_THE_SDK, *VARIABLES}):
        logger.warning("%s; logitport serve --help has all options", variable)
    for name, field in VARIABLES.items():
        if name in os.environ and field not in config.model_fields_set:
            logger.warning("%s is set in the environment, but the configuration of this program leaves it out", name)
    try:
        with signals.ending_the_process():
            running = asyncio.run(_serve(config, processors, launched, on_ready or _report, signals))
    except (StartupError, LogitportError) as error:
        sys.exit(f"logitport: {error}")
    if running:
        logger.warning(
            "%d steps or admissions are still running after %.1f s; exiting without them", running, config.stop_seconds
        )
        logging.shutdown()
        os._exit(0)  # a normal exit would wait for their threads


def _report(ready: ReadyServer) -> None:
    if ready.metrics_port is not None:
        logger.info("metrics on port %d", ready.metrics_port)
    print(f"logitport listening on {ready.address}", flush=True)  # noqa: T201 - programs wait for this line


async def _serve(
    config: ServerConfig,
    processors: Iterable[object],
    launched: Launched | None,
    on_ready: Callable[[ReadyServer], None],
    signals: StopSignals,
) -> int:
    server = Server(config, processors, launched)
    stopping = signals.watch()
    ready = await _start(server, stopping)
    collector.begin()
    loop = asyncio.get_running_loop()
    collecting = loop.create_task(collector.collect_at_intervals(server.take_freed))
    loop.add_signal_handler(signal.SIGHUP, partial(server.refresh, force=True))
    compiled.warn_if_missing()
    shipped, programs = server.announcement, "accepted" if config.programs else "refused"
    text = "logitport %s on %s; core: %s; shipped processors are %s; programs are %s"
    logger.info(text, VERSION, server.device, compiled.describe(), shipped, programs)
    on_ready(ready)
    service_manager.notify("READY=1")
    await stopping.wait()
    collecting.cancel()
    text = "stopping: sessions and calls get up to %.1f s; a second signal ends the server at once"
    logger.info(text, config.stop_seconds)
    return await server.stop()


async def _start(server: Server, stopping: asyncio.Event) -> ReadyServer:
    """Start the server. If `stopping` is set before it is ready, close it and raise StoppedBeforeReady."""
    starting, stopped = asyncio.create_task(server.start()), asyncio.create_task(stopping.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    (stopped if starting.done() else starting).cancel()
    try:
        return await starting
    except asyncio.CancelledError:
        raise StoppedBeforeReady from None
