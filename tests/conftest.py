"""Fixtures with real servers and clients, and settings of all tests."""

from __future__ import annotations

import gc
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

import pytest

from logitport import Client, shipping
from logitport.core import compiled
from logitport_sandbox import LAYERS
from tests import leaks, missing_packages, processor_time
from tests.compatibility.plugin import pytest_runtest_logreport, pytest_runtest_setup  # noqa: F401 - hooks
from tests.tiers import is_left_out, load_profile, marks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from logitport_server.access.token_file import Grant


def pytest_configure(config: pytest.Config) -> None:
    """Set the number of examples, give the test run a cache folder of its own, and register classes as code.

    Servers keep the results of the sandbox probe there. The workers of pytest-xdist inherit the folder and share them.
    """
    load_profile(config.option.markexpr)
    for plugin in (leaks, missing_packages, processor_time):
        config.pluginmanager.register(plugin)  # pytest calls no hook of this file for fixtures of the whole run
    shipping.LIFTS = False  # most tests of registration are about code; lifting takes seconds
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in `make test &`; commands that tests run inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        # One process of pytest-xdist for each core. With more threads, those of torch would wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        folder = tempfile.TemporaryDirectory(prefix="logitport-tests-")
        os.environ["XDG_CACHE_HOME"] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause the garbage collector, then exempt all modules and tests from it.

    They are a million objects that stay until the end. Each `gc.collect` of a test would go through them for 0.5 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that the expression of marks leaves out."""
    return is_left_out(collection_path, config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests the marks of their file."""
    for item in items:
        for mark in marks_of(item.path):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what UTF-8 cannot encode in captured output: pytest-xdist sends reports between processes as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


COMMAND = str(Path(sys.executable).with_name("logitport"))
_STOP_SECONDS = 60.0
# Long timeouts, because the machine may be busy. A test of a timeout sets its own.
_LONG_TIMEOUTS = {"--processor-timeout-seconds": "60", "--load-timeout-seconds": "200"}
# Below the kernel's ephemeral ports: a connection could take the port of a server that is temporarily down.
_PORTS = range(20_000, 32_000)


@dataclass
class RunningServer:
    """One `logitport serve`.

    Attributes:
        process: the process; its stdout has been read up to the line that reports readiness.
        target: HOST:PORT of its gRPC service.
        log: file with its stderr.
    """

    process: subprocess.Popen[str]
    target: str
    log: Path

    @property
    def metrics_url(self) -> str:
        """URL of its Prometheus metrics; only if it was started with --metrics-listen."""
        port = re.search(r"metrics on port (\d+)", self.log.read_text())
        assert port, f"no metrics: {self.log.read_text()}"
        return f"http://127.0.0.1:{port[1]}/metrics"

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_SECONDS)


def environment() -> dict[str, str]:
    """The environment without options of the server. A test run in pure Python also has servers in pure Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LOGITPORT_") or name == compiled.VARIABLE
    }


def free_address() -> str:
    """HOST:PORT for a server that will be stopped and restarted."""
    while True:
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", random.choice(_PORTS)))
            return f"127.0.0.1:{taken.getsockname()[1]}"


@cache
def _missing_layers() -> list[str]:
    """Layers of the sandbox that this machine lacks. Workers are tested with the other layers."""
    return [layer.name for layer in LAYERS if layer.missing() is not None]


@contextmanager
def run_server(
    *options: str, grants: Iterable[Grant] = (), variables: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Run a server with these options, and these lines of `--tokens`, while the context lasts. Its port is free.

    `variables` are added to its environment.
    """
    defaults = {"--listen": "127.0.0.1:0", "--device": "cpu", **_LONG_TIMEOUTS}
    given = [part for name, value in defaults.items() if name not in options for part in (name, value)]
    given += [part for name in _missing_layers() for part in ("--layers", f"{name}=off")]
    with tempfile.TemporaryDirectory() as folder:
        log, tokens = Path(folder, "stderr"), Path(folder, "tokens")
        tokens.write_text("\n".join(grant.line for grant in grants))
        given += ["--tokens", str(tokens)] if tokens.stat().st_size else []
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [COMMAND, "serve", *given, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment() | dict(variables or {}),
            )
        with process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                assert ready.startswith("logitport listening on "), f"{ready!r}, and on stderr: {log.read_text()}"
                yield RunningServer(process, ready.split()[-1], log)
            finally:
                process.kill()


@pytest.fixture(autouse=True)
def import_path() -> Iterator[None]:
    """Restore the import path: commands add the folders of processors, and the stubs of engines, to their process."""
    before = list(sys.path)
    yield
    sys.path[:] = before


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
    """Runs a server with the given options in a context, for fixtures that several tests share."""
    return run_server


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with the given options; they are stopped after the test."""
    with ExitStack() as stack:
        yield lambda *options, **others: stack.enter_context(run_server(*options, **others))


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A client of `server`."""
    with Client(server.target) as connected:
        yield connected
