"""Clients for servers that a test starts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connects to a server with the options of Client; the connection ends with the test."""
    with ExitStack() as stack:

        def connect(server: RunningServer, **options: Any) -> Client:
            return stack.enter_context(Client(server.target, **options))

        yield connect
