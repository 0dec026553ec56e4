"""Processes that run a part of the benchmark on command: one JSON object per line, in both directions."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

_EXIT_SECONDS = 10.0


class HelperLost(Exception):
    """The process has ended, or did not reply in time."""


class Helper:
    """One process that runs a module of this package."""

    def __init__(self, module: str, *arguments: str, token: str = "") -> None:
        command = [sys.executable, "-m", f"benchmarks.hostile.{module}", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
        if token:
            environment["LOGITPORT_TOKEN"] = token
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **command: Any) -> None:
        """Send a command. Raises HelperLost."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise HelperLost(f"{self.process.args} has ended") from error

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next reply. Raises HelperLost."""
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise HelperLost(f"{self.process.args} did not reply in {seconds:g} s") from None
        if not line:
            raise HelperLost(f"{self.process.args} has ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def call(self, seconds: float, /, **command: Any) -> dict[str, Any]:
        """Send a command and return the reply. Raises HelperLost."""
        self.send(**command)
        return self.receive(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for example to stop and continue it."""
        self.process.send_signal(number)

    def close(self) -> None:
        """End the process: it ends itself when its input ends."""
        with suppress(OSError):
            self.signal(signal.SIGCONT)
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._replies.put(line)
        self._replies.put("")


def commands() -> Iterator[dict[str, Any]]:
    """In the process: the commands, until the input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def reply(**values: Any) -> None:
    """In the process: reply to a command."""
    print(json.dumps(values), flush=True)
