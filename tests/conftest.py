"""Real servers and clients, for every test that asks; what holds for all tests."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from logitport import Client
from logitport_server.sandbox import LAYERS
from tests.compatibility.plugin import pytest_runtest_logreport, pytest_runtest_setup  # noqa: F401 - hooks
from tests.tiers import is_slow

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# How long an example takes depends on what else the machine does; what fixtures give is the same for all examples.
_UNSUITABLE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
# New examples are for those who can look at what they find: continuous integration judges a change by known ones.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=_UNSUITABLE, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what UTF-8 cannot encode in captured output: pytest-xdist sends reports between processes as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


COMMAND = str(Path(sys.executable).with_name("logitport"))
_STOP_SECONDS = 60.0
# A machine that is busy with tests takes its time: who waits for a deadline to pass gives one.
_PATIENCE = {"--processor-timeout-seconds": "60", "--load-timeout-seconds": "200"}
# Below those that the kernel gives to connections, one of which might have the port of a server that is away.
_PORTS = range(20_000, 32_000)


@dataclass
class RunningServer:
    """One `logitport serve`.

    Attributes:
        process: it; its stdout has been read up to the line that tells that it is ready.
        target: HOST:PORT of its gRPC service.
        log: the file that its stderr goes to.
    """

    process: subprocess.Popen[str]
    target: str
    log: Path

    @property
    def metrics_url(self) -> str:
        """Where its Prometheus metrics are; only if it was started with --metrics-listen."""
        port = re.search(r"metrics on port (\d+)", self.log.read_text())
        assert port, f"no metrics: {self.log.read_text()}"
        return f"http://127.0.0.1:{port[1]}/metrics"

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_SECONDS)


def environment() -> dict[str, str]:
    """The environment without options of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}


def free_address() -> str:
    """HOST:PORT for a server that will go and come back."""
    while True:
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", random.choice(_PORTS)))
            return f"127.0.0.1:{taken.getsockname()[1]}"


@cache
def _missing_layers() -> list[str]:
    """Layers of the sandbox that this machine lacks: what workers do is tested there too, with those that it has."""
    return [layer.name for layer in LAYERS if layer.missing() is not None]


@contextmanager
def run_server(*options: str) -> Iterator[RunningServer]:
    """A server with these options, on a free port unless they say otherwise, for as long as the context lasts."""
    defaults = {"--listen": "127.0.0.1:0", "--device": "cpu", **_PATIENCE}
    given = [part for name, value in defaults.items() if name not in options for part in (name, value)]
    given += [part for name in _missing_layers() for part in ("--without-layer", name)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "stderr")
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [COMMAND, "serve", *given, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(),
            )
        with process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                assert ready.startswith("logitport listening on "), f"{ready!r}, and on stderr: {log.read_text()}"
                yield RunningServer(process, ready.split()[-1], log)
            finally:
                process.kill()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server that accepts shipped processors and serves metrics; shared by all tests."""
    with run_server("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="session")
def server_without_flag() -> Iterator[RunningServer]:
    """A server that accepts no shipped processors; shared by all tests."""
    with run_server() as running:
        yield running


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[RunningServer]]:
    """A server with the options given, as a context: for fixtures that several tests share."""
    return run_server


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Starts a server with the options given; it ends with the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(run_server(*options))


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A client of `server`."""
    with Client(server.target) as connected:
        yield connected
