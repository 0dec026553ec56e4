"""Redis servers for tests: each on a free loopback port, with its data in a temporary folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

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
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
