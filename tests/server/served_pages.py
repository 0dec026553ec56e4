"""Ends the HTTP pages that tests serve. A server of logitport serves them until its process ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.http_pages import status_pages
from logitport_server.http_pages.status_pages import StatusPages

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def pages_end() -> Iterator[None]:
    """End the pages after the last test of the file that imports this fixture."""
    started: list[StatusPages] = []

    class Noted(StatusPages):
        def __init__(self, server: Any) -> None:
            super().__init__(server)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_pages, "StatusPages", Noted)
        yield
    if started:
        with ThreadPoolExecutor(len(started)) as threads:  # each takes half a second
            list(threads.map(Noted.close, started))
