"""The pytest plugin: a fixture with a real server.

pytest loads this module in each run where logitport is installed, so it imports nothing else until a test needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from logitport_testing.runner import RunningServer

_INI = "logitport_server"
_PLACES = ("process", "thread")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting `logitport_server`."""
    parser.addini(_INI, f"where the fixture logitport_server runs a server: {' or '.join(_PLACES)}", default="process")


@pytest.fixture(scope="session")
def logitport_server_options() -> Mapping[str, Any]:
    """Options of `logitport serve` for the fixture `logitport_server`, by their names in Python. Override it."""
    return {}


@pytest.fixture(scope="session")
def logitport_server(
    pytestconfig: pytest.Config, logitport_server_options: Mapping[str, Any]
) -> Iterator[RunningServer]:
    """A real server on this machine, shared by all tests; `Client(logitport_server.target)` connects to it.

    It accepts shipped processors. They run in its own process, unless the options have {"isolation": "process"}.
    """
    place = pytestconfig.getini(_INI)
    if place not in _PLACES:
        raise pytest.UsageError(f"the setting {_INI} is {place!r}; write {' or '.join(_PLACES)}")
    server: RunningServer
    if place == "thread":
        from logitport_testing.runner import load_backend

        server = load_backend().serve_in_thread(logitport_server_options)
    else:
        from logitport_testing.server_process import ServerProcess

        server = ServerProcess(logitport_server_options)
    try:
        yield server
    finally:
        server.stop()
