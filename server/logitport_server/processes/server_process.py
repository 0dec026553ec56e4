"""One server as a child of this process, which is started again when it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from logitport_server import addresses
from logitport_server.backoff import Backoff
from logitport_server.transports.readiness import Ready

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)

# Not `-m`, which would look for modules in the working directory first.
_MAIN = "import sys; sys.path[:] = filter(None, sys.path); from logitport_server.processes.child import main; main()"


class ServerProcess:
    """One server, which keeps its address when it is started again.

    Args:
        config: of this server alone.

    Attributes:
        is_ready: completed when the server is ready for the first time, or will not be.
        address: that clients call; "" before.
        metrics_port: of its own metrics, on loopback; None while there are none.
        restarts: number of starts after the first one.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.address = ""
        self.metrics_port: int | None = None
        self.restarts = 0
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run the server, again and again, until `stop`, or until it ends before it was ready once.

        Returns:
            The exit status of its last process.
        """
        backoff = Backoff()
        backoff.next()
        while True:
            status = await self._run_once()
            if not self.is_ready.done():
                self.is_ready.set_result(False)
                return status
            if self._stopping.is_set():
                return status
            delay = backoff.next()
            logger.error(
                "server %s ended with status %d; it is started again in %g s",
                self.address,
                status,
                delay,
                extra={"event": "server_ended", "server": self.address, "status": status},
            )
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
                return status
            self.restarts += 1

    def stop(self) -> None:
        """Let the server drain and end. It is not started again. The second call ends it at once."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the server, if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run_once(self) -> int:
        """Run one process. Returns its exit status."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _MAIN,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone: a second signal would end the server at once
        )
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        self._process = process
        if self._stopping.is_set():  # while it was started
            self.signal(signal.SIGTERM)
        try:
            process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            line = await process.stdout.readline()
            if line:
                self._record(Ready(**orjson.loads(line)), process.pid)
            return await process.wait()
        finally:
            self._process = None
            self.metrics_port = None

    def _record(self, ready: Ready, process: int) -> None:
        self.address = ready.address
        self.metrics_port = ready.metrics_port
        if addresses.has_free_port(self._config.listen):  # the server keeps the port: clients know the address
            listen = addresses.with_port_of(self._config.listen, ready.address)
            self._config = self._config.model_copy(update={"listen": listen})
        fields = {"server": ready.address, "process_id": process}
        logger.info("server %s is process %d", *fields.values(), extra={"event": "server_started", **fields})
        if not self.is_ready.done():
            self.is_ready.set_result(True)
