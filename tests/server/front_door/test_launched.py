"""What a server launches first."""

from __future__ import annotations

import os

import pytest

from logitport_server.config import ServerConfig
from logitport_server.front_door.launched import launch
from logitport_server.lifecycle.start_errors import StartupError


def test_another_system_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(StartupError, match=r"needs Linux: .*LOGITPORT_TARGET=embedded"):
        launch(ServerConfig())
