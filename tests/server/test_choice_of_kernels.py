"""The choice of kernels of a program that makes a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, ops
from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

# It reads the choice of kernels, and then ends, because its store cannot be opened.
ENDS = ServerConfig(listen="127.0.0.1:0", store="/dev/null/store")


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    ops.configure("all")


def test_a_server_keeps_the_choice_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    ops.configure("none")
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "all")
    with pytest.raises(StartupError):
        Server(ENDS)
    assert ops.current().choose("cpu") == ("native", "custom_ops is none")


def test_a_server_refuses_an_invalid_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    ops.configure("none")
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "apply_edits")
    with pytest.raises(InvalidArgument, match="LOGITPORT_CUSTOM_OPS is 'apply_edits'"):
        Server(ENDS)
