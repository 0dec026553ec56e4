"""Ends the HTTP pages that tests serve. A server of logitport serves them until its process ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import start_http_server

from logitport_server import status_pages

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def pages_end() -> Iterator[None]:
    """End the pages after the last test of the file that imports this fixture."""
    started: list[Any] = []

    def start(*arguments: Any) -> Any:
        started.append(start_http_server(*arguments))
        return started[-1]

    def end(server: Any, thread: Any) -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_pages, "start_http_server", start)
        yield
    if started:
        with ThreadPoolExecutor(len(started)) as threads:  # each takes half a second
            list(threads.map(end, *zip(*started, strict=True)))
