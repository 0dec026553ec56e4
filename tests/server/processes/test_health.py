"""Health checks of real servers, and of pages."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from logitport_server.http_pages.status_pages import Health, listen
from logitport_server.processes.health import check_health
from logitport_server.server import Server
from tests.certificates import Authority
from tests.conftest import COMMAND, free_address
from tests.server.served_pages import pages_end  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_no_server() -> None:
    assert check_health(free_address()) is Health.SILENT


@pytest.mark.slow
@pytest.mark.parametrize("health", Health)
def test_what_the_page_shows(health: Health) -> None:
    pages = listen("127.0.0.1:0", CollectorRegistry(), health=lambda: health)
    assert check_health(f"127.0.0.1:{pages.port}") is health
    pages.close()


@pytest.mark.parametrize(
    ("responsive", "ready", "draining", "health"),
    [
        (True, True, False, Health.SERVING),
        (True, False, False, Health.NOT_SERVING),
        (True, True, True, Health.NOT_SERVING),
        (False, True, False, Health.SILENT),
        (False, True, True, Health.SILENT),
    ],
)
def test_the_health_of_a_server(responsive: bool, ready: bool, draining: bool, health: Health) -> None:
    """A loop that does not run is a server that hangs, also while its drain has begun."""
    server = SimpleNamespace(
        _heartbeat=SimpleNamespace(is_responsive=lambda: responsive),
        _is_ready=ready,
        _sessions=SimpleNamespace(is_draining=draining),
    )
    assert Server._present_health(server) is health  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_server_that_drains_and_ends(start_server: Callable[..., RunningServer]) -> None:
    address = free_address()
    server = start_server("--metrics-listen", address)
    subprocess.run([COMMAND, "drain", server.target], check=True, capture_output=True, timeout=200)
    assert check_health(address) is Health.NOT_SERVING
    server.stop()
    assert check_health(address) is Health.SILENT


@pytest.mark.slow
def test_a_server_that_requires_certificates_and_tokens(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files, tokens, address = authority.issue_server(), tmp_path / "tokens", free_address()
    tokens.touch()
    options = {"--tls-cert": files.cert, "--tls-key": files.key, "--tls-client-ca": authority.ca, "--tokens": tokens}
    server = start_server("--metrics-listen", address, *(str(part) for option in options.items() for part in option))
    assert check_health(address) is Health.SERVING
    server.stop()
    assert check_health(address) is Health.SILENT
