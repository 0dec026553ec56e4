"""In a child of a supervisor: one server, which ends when its parent does.

The parent writes the options to stdin, as one line of JSON, and keeps the pipe open as long as it runs. The child
writes one line of JSON to stdout when it is ready: the fields of `ReadyServer`. Everything else that it prints goes to
stderr. Its first argument is the id of its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import orjson

from logitport_sandbox.linux import end_with_parent
from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.processes.single import serve

if TYPE_CHECKING:
    from logitport_server.transports.readiness import ReadyServer


def main() -> None:
    """Serve until SIGTERM, or until the parent ends."""
    parent, ready = _take_pipes()
    # Not by SIGTERM: a server that moves its sessions first would keep its port from the server of the next parent.
    end_with_parent(int(sys.argv[1]))
    config = ServerConfig(**orjson.loads(_read_line(parent)))
    threading.Thread(target=_await_end, args=(parent,), name="logitport-parent", daemon=True).start()

    def report(started: ReadyServer) -> None:
        os.write(ready, orjson.dumps(started._asdict()) + b"\n")

    try:
        serve(config, report)
    except StartupError as error:
        sys.exit(f"logitport: {error}")


def _take_pipes() -> tuple[int, int]:
    """Return the descriptors of the pipes from and to the parent, which no process inherits from now on."""
    parent, ready = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return parent, ready


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 1 << 16)
        if not data:
            sys.exit("logitport: the parent of this process ended before it sent the options")
        line += data
    return line


def _await_end(parent: int) -> None:
    """Wait for the end of the parent, also by SIGKILL, and end."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGKILL)
