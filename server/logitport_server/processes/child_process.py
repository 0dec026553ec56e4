"""One server as a child of this process: how it is started, and what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from logitport_server.transports.readiness import ReadyServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_server.config import ServerConfig

# Not `-m`, which would look for modules in the working directory first.
_MAIN = "import sys; sys.path[:] = filter(None, sys.path); from {} import main; main()"
_KEPT_LINES = 20


class ChildProcess:
    """One process, from its start to its end. `supervised_server` is at the other end of its pipes.

    The stderr of the process is copied to this process's.

    Args:
        config: the options of the server.
        command: runs `supervised_server.main`; see `child_command`.
        environment: of the process; None for this process's own.

    Attributes:
        pid: its id.
    """

    def __init__(
        self, config: ServerConfig, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the command is our own
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone: a second signal would end the server at once
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._parent, self._reports = self._process.stdin, self._process.stdout
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._copying = threading.Thread(target=self._copy, name="logitport-output", daemon=True)
        self._copying.start()
        os.set_blocking(self._reports.fileno(), False)
        self._line = b""
        with suppress(BrokenPipeError):  # it has ended already
            self._parent.write(config.model_dump_json().encode() + b"\n")

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    @property
    def last_lines(self) -> str:
        """The last lines of its output. The last one usually has the reason of the process's end."""
        return "\n".join(self._lines)

    def read_ready(self) -> ReadyServer | None:
        """Return what the process has reported when it was ready; None if it has not. Does not wait."""
        self._line += self._reports.read() or b""
        return ReadyServer(**orjson.loads(self._line)) if self._line.endswith(b"\n") else None

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def end(self) -> int:
        """Kill the process if it runs. Returns its exit status."""
        self._process.kill()
        status = self._process.wait()
        self._parent.close()
        self._reports.close()
        self._copying.join(1.0)  # not for long: its children may have the stream, too
        return status

    def _copy(self) -> None:
        stream = self._process.stderr
        assert stream is not None  # noqa: S101
        with stream, os.fdopen(os.dup(stream.fileno()), errors="replace") as lines:
            for line in lines:
                self._lines.append(line.rstrip("\n"))
                print(line, end="", file=sys.stderr, flush=True)  # noqa: T201


def child_command(address: str, module: str) -> list[str]:
    """Return the command of a server whose parent is this process.

    Args:
        address: of the server, for people who read the command.
        module: its function `main` runs `supervised_server.main`.
    """
    return [sys.executable, "-c", _MAIN.format(module), str(os.getpid()), address]
