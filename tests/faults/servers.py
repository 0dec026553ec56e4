"""Servers that are killed, stopped and continued at random moments.

They are forks of one process that has imported everything, so that a restart takes a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import free_address

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess
    from random import Random

# Short, so that clients soon notice a stopped server.
PROCESSOR_SECONDS = 0.5
_STOPPED_SECONDS = [0.05, 0.5, 2.0, 4.0, 8.0]


def context() -> Any:
    """Return the context of the processes."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["logitport_server.server", "logitport_builtins", "torch"])
    return made


def serve(address: str, log: str) -> None:
    """Run a server in this process, which is a fork."""
    from logitport_server.config import ServerConfig
    from logitport_server.server import run

    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)
    run(ServerConfig(listen=address, device="cpu", entry_points=False, processor_timeout_seconds=PROCESSOR_SECONDS))


class FaultyServer:
    """A server that is killed, stopped and continued at random moments, always on the same address."""

    def __init__(self, context: Any, random: Random, log: str, *, faults: bool) -> None:
        self.target = free_address()
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[float, str]] = []
        self._context = context
        self._random = random
        self._log = log
        self._ending = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if faults:
            self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._process.kill()
        self._process.join()

    def _start(self) -> ForkServerProcess:
        process = self._context.Process(target=serve, args=(self.target, self._log))
        process.start()
        return process  # type: ignore[no-any-return]

    def _run(self) -> None:
        # A server that is killed before it listens would be no server at all.
        while self._listens() and not self._ending.wait(self._random.uniform(0.1, 0.8)):
            kind = self._random.choices(["kill", "stop", "stop and kill"], [5, 4, 1])[0]
            self.counts[kind] += 1
            if kind != "kill":
                self._signal(signal.SIGSTOP)
                self._ending.wait(self._random.choice(_STOPPED_SECONDS))
            if kind == "stop":
                self._signal(signal.SIGCONT)
                continue
            self._signal(signal.SIGKILL)
            self._process.join()
            self._ending.wait(self._random.choice([0.0, 0.1, 1.0]))
            self._process = self._start()

    def _listens(self) -> bool:
        """Wait until the server accepts connections. Returns False at the end of the run."""
        host, port = self.target.split(":")
        while not self._ending.wait(0.02):
            with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
                return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        self.events.append((time.monotonic(), number.name))
        assert self._process.pid is not None
        with suppress(ProcessLookupError):  # it may have ended before it could listen
            os.kill(self._process.pid, number)
