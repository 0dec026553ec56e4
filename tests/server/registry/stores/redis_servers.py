"""Redis servers for tests: each on a free loopback port, with its data in a temporary folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    import signal
    from pathlib import Path

BINARY = shutil.which("redis-server")
MISSING = "needs redis-server (apt-get install redis-server) and the extra redis"


class RedisServer:
    """One server. It writes each change to disk before it replies, so that a kill loses nothing.

    Args:
        folder: for its data and log.
        options: further arguments.
        tls: whether it accepts only TLS; `options` has the certificate.
    """

    def __init__(self, folder: Path, *options: str, tls: bool = False) -> None:
        pytest.importorskip("redis", reason=MISSING)
        if BINARY is None:
            pytest.skip(MISSING)
        self._folder = folder
        self._options = options
        self._tls = tls
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, with the data that it had."""
        assert BINARY is not None
        command = [BINARY, "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        command += ["--port", "0", "--tls-port", str(self.port)] if self._tls else ["--port", str(self.port)]
        command += ["--appendonly", "yes", "--appendfsync", "always", *self._options]
        path = self._folder / "log"
        with path.open("ab") as log:
            began = log.tell()
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        # It accepts connections, and refuses commands, while it loads its data.
        wait_until(lambda: b"Ready to accept connections" in path.read_bytes()[began:], path.read_text)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
