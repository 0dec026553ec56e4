"""States that a server sends to the service manager."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from logitport_server.lifecycle.service_manager import notify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_without_a_service_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    notify("READY=1")


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(b"")
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + manager.getsockname()[1:].decode())
        notify("READY=1")
        assert manager.recv(64) == b"READY=1"


def test_a_manager_that_does_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its queue is full: the server does not wait."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        for _ in range(2000):
            notify("WATCHDOG=1")


@pytest.mark.timeout(120)
def test_a_server_that_is_ready_says_so_and_goes_on(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60.0)
        start_server(variables={"NOTIFY_SOCKET": str(path)})
        received = [manager.recv(64)]
        while b"READY=1" not in received:
            received.append(manager.recv(64))
        assert manager.recv(64) == b"WATCHDOG=1"
