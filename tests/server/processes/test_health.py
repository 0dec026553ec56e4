"""Health checks of real servers."""

from __future__ import annotations

import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from logitport_server.processes.health import Health, HealthCheck
from tests.certificates import Authority
from tests.conftest import COMMAND, free_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_a_server_that_serves(server: RunningServer) -> None:
    with closing(HealthCheck(server.target)) as health:
        assert health.check() is Health.SERVING


def test_no_server() -> None:
    with closing(HealthCheck(free_address())) as health:
        assert health.check() is Health.SILENT


@pytest.mark.slow
def test_a_server_that_drains_and_ends(start_server: Callable[..., RunningServer]) -> None:
    address = free_address()
    server = start_server("--health-listen", address)
    with closing(HealthCheck(address)) as health:
        subprocess.run([COMMAND, "drain", server.target], check=True, capture_output=True, timeout=200)
        assert health.check() is Health.NOT_SERVING
        server.stop()
        assert health.check() is Health.SILENT


@pytest.mark.slow
def test_a_server_that_requires_certificates_and_tokens(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files, tokens, address = authority.issue_server(), tmp_path / "tokens", free_address()
    tokens.touch()
    options = {"--tls-cert": files.cert, "--tls-key": files.key, "--tls-client-ca": authority.ca, "--tokens": tokens}
    server = start_server("--health-listen", address, *(str(part) for option in options.items() for part in option))
    with closing(HealthCheck(address)) as health:
        assert health.check() is Health.SERVING
        server.stop()
        assert health.check() is Health.SILENT
