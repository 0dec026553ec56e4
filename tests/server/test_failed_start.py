"""A server that cannot start leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.server import Server
from tests.descriptors import opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Others, such as gRPC's, belong to the process and stay.
_PREFIX = "logitport-"


@pytest.fixture
def taken() -> Iterator[str]:
    """HOST:PORT in use."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield f"127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    made = tmp_path / "tmp"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith(_PREFIX) or "serve_forever" in one.name}


def files() -> dict[int, str]:
    """The open descriptors of the process, apart from those that gRPC keeps for all servers."""
    return {number: target for number, target in opened() if "anon_inode" not in target}


def fail(config: ServerConfig) -> None:
    async def start() -> None:
        with pytest.raises(StartupError):
            await Server(config).start()

    asyncio.run(start())
    gc.collect()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
@pytest.mark.parametrize("option", ["listen", "metrics_listen"])
@pytest.mark.slow
def test_a_port_in_use(option: str, taken: str, folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "metrics_listen": "127.0.0.1:0",
        "store": str(tmp_path / "store"),
        option: taken,
    }
    config = ServerConfig(**options)
    fail(config)  # what a first server opens for the process
    before, running = files(), threads()
    for _ in range(3):
        fail(config)
    wait_until(lambda: threads() <= running, lambda: f"{threads()} run, before: {running}")
    assert len(files()) <= len(before), {key: value for key, value in files().items() if key not in before}
    assert not list(folder.iterdir())


def test_a_store_that_cannot_be_opened(folder: Path) -> None:
    before = threads()
    with pytest.raises(StartupError):
        Server(ServerConfig(listen="127.0.0.1:0", store="/dev/null/store"))
    wait_until(lambda: threads() <= before, lambda: f"{threads()} run, before: {before}")
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_an_invalid_variable_of_the_process_that_forks_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "apply_edits")

    async def start() -> None:
        with pytest.raises(StartupError, match="LOGITPORT_CUSTOM_OPS is 'apply_edits'"):
            await Server(ServerConfig(listen="127.0.0.1:0")).start()

    asyncio.run(start())
