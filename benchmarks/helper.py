"""Processes that run a part of a benchmark on command."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from typing_extensions import Self

_EXIT_SECONDS = 10.0
_SPAWN = multiprocessing.get_context("spawn")


class HelperLost(Exception):
    """The process has ended, or did not reply in time."""


class Helper:
    """One process that runs a function, with one end of a pipe as its first argument.

    It has a session of its own: with autogroups (sched(7)), the kernel would otherwise divide the CPU among the clients
    of an attacker and of an innocent engine by their threads, as if both were one service.

    Attributes:
        pid: the process.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_run, args=(function, theirs, *arguments), name=function.__name__)
        self._process.start()
        self.pid: int = self._process.pid or 0
        theirs.close()

    def send(self, command: Any) -> None:
        """Send a command. Raises HelperLost."""
        try:
            self._pipe.send(command)
        except OSError as error:
            raise HelperLost(f"{self._process.name} has ended") from error

    def receive(self, seconds: float | None = None) -> Any:
        """Return the next reply. Raises HelperLost."""
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise HelperLost(f"{self._process.name} has ended") from error
        raise HelperLost(f"{self._process.name} did not reply in {seconds:g} s")

    def call(self, seconds: float | None = None, /, **command: Any) -> Any:
        """Send a command and return the reply. Raises HelperLost."""
        self.send(command)
        return self.receive(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for example to stop and continue it."""
        os.kill(self.pid, number)

    def close(self, seconds: float = _EXIT_SECONDS) -> None:
        """End the process: it ends itself when the pipe is closed, or is killed after this time."""
        self._pipe.close()
        with suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self._process.join(seconds)
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(function: Callable[..., None], *arguments: Any) -> None:
    os.setsid()
    function(*arguments)


def commands(pipe: Connection) -> Iterator[Any]:
    """In the process: the commands, until the pipe is closed."""
    with suppress(EOFError, ConnectionResetError):
        while True:
            yield pipe.recv()
