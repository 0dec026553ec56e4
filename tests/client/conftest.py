"""Fixtures: a session against a scripted server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.scripted import Script, Servers

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session import Session


@pytest.fixture(scope="session")
def opened() -> Callable[..., tuple[Session, Script]]:
    """Opens a session of FP32 logits, 4 wide; returns it and the script of its server."""

    def open_session(script: Script | None = None) -> tuple[Session, Script]:
        one = Servers([script or Script()])
        return one.session, one.scripts[0]

    return open_session
