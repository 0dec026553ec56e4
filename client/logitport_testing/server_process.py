"""A server in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from logitport.core import compiled
from logitport.errors import NotInstalled, ServerUnavailable
from logitport_testing.runner import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMMAND = "from logitport_server.cli.main import main; main()"
_READY = "logitport listening on "
_STOP_SECONDS = 30.0
_MAX_LOG_CHARACTERS = 4000
_DEFAULTS = {"listen": "127.0.0.1:0", "device": "cpu", "enable_custom_logit_processor": True, "isolation": "none"}


class ServerProcess:
    """`logitport serve`, started. It accepts shipped processors, and runs them in its own process by default.

    Args:
        options: options of the server, by their names in Python, such as {"max_requests_per_session": 4}.

    Attributes:
        target: HOST:PORT of its gRPC service.

    Raises:
        NotInstalled: the server, or a package that it needs, is not installed.
        ServerUnavailable: it has not started; the message has its log.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the process writes to it until `stop`
        # Without options of a server. Whether the compiled core runs is a choice for this process, too.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("LOGITPORT_") or name == compiled.VARIABLE
        }
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with options of the test
            [sys.executable, "-c", _COMMAND, "serve", *_flags({**_DEFAULTS, **options})],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        ready = self._process.stdout.readline()
        if not ready.startswith(_READY):
            log = self.log
            self.stop()
            if "No module named" in log:
                raise NotInstalled(f"the server cannot be imported; {ADVICE}\n{log}")
            raise ServerUnavailable(f"the server has not started: {log or 'it has written no log'}")
        self.target = ready.removeprefix(_READY).strip()

    @property
    def log(self) -> str:
        """The end of what it has logged."""
        self._log.seek(0)
        return self._log.read()[-_MAX_LOG_CHARACTERS:]

    def stop(self) -> None:
        """Stop it; kill it if it does not stop in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """The command-line arguments of these options."""
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            yield from (f"--{flag}", str(one))
