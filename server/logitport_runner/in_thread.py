"""A server whose front door is a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from logitport.errors import ServerUnavailable
from logitport_runner.in_process import make_config
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_server.config import ServerConfig

_STOP_SECONDS = 60.0
_DEFAULTS = {"listen": "127.0.0.1:0", "isolation": "none", "stop_seconds": 1.0}


class ThreadServer:
    """A server, started. Its front door is a thread; sessions have processes of their own.

    By default it accepts shipped processors, and runs them in these processes, without a sandbox.

    Args:
        options: options of the server, by the names of `ServerConfig`.

    Attributes:
        target: HOST:PORT of its gRPC service.

    Raises:
        ServerUnavailable: it cannot start.
        InvalidArgument: an option is unknown or has a wrong value.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        config = make_config({**_DEFAULTS, **options})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="logitport-server", daemon=True)
        self._thread.start()
        try:
            self._server, self.target = asyncio.run_coroutine_threadsafe(_start(config), self._loop).result()
        except StartupError as error:
            self._end()
            raise ServerUnavailable(f"the server cannot start: {error}") from error
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop it; calls in flight get a second to finish."""
        try:
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(_STOP_SECONDS)
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _start(config: ServerConfig) -> tuple[Server, str]:
    server = Server(config)
    return server, (await server.start()).address
