"""The limit of open files, and errors when it is reached."""

from __future__ import annotations

import errno
import logging
import resource
import time
from typing import Any

import pytest

from logitport import LimitExceeded
from logitport_server.config import ServerConfig
from logitport_server.transports.endpoint import connection_limit
from logitport_session.resources import descriptors
from logitport_session.resources.log_limit import LogLimit


def test_a_shortage_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once a second: callers may try again and again."""
    monkeypatch.setattr(descriptors, "_log_limit", LogLimit())
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    for _ in range(3):
        descriptors.shortage()
    assert caplog.text.count("no descriptor is free: this process may have") == 1
    assert str(descriptors.limit()) in caplog.text


def test_a_shortage_is_the_servers_and_other_errors_are_not() -> None:
    for number in (errno.EMFILE, errno.ENFILE):
        with pytest.raises(LimitExceeded, match="the server is out of file descriptors"), descriptors.reported():
            raise OSError(number, "no more")
    caused = ValueError("cannot be read")
    for error in (OSError(errno.ENOMEM, "no memory"), caused):
        with pytest.raises(type(error)), descriptors.reported():
            raise error
    caused.__cause__ = OSError(errno.EMFILE, "no more")
    assert descriptors.is_shortage(caused)


def test_the_limit_is_raised(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    with caplog.at_level(logging.INFO):
        descriptors.raise_limit()
        descriptors.raise_limit()
    assert limits == [(1024, 4096), (4096, 4096)]
    assert "from 1024 to 4096" in caplog.text


def refuse(*_: object) -> None:
    raise ValueError("not permitted")


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    descriptors.raise_limit()
    assert "stays at 256: not permitted" in caplog.text
    assert descriptors.limit() == 256


@pytest.mark.parametrize(
    ("options", "descriptors", "accepted"),
    [
        ({}, 1 << 20, 1024),
        ({}, 1024 + 1280, 1024),
        ({}, 1024 + 1279, 1023),
        ({}, 1024, 256),
        ({}, 2, 1),
        ({"max_sessions_per_principal": 1}, 1 << 20, 1024),
        ({"max_sessions_per_principal": 100}, 1 << 20, 1600),
        ({"local_transport": False}, 1024 + 128 + 256 * 4 + 64, 1024),  # what is off needs none
    ],
)
def test_connections_leave_descriptors_for_sessions_and_workers(
    options: dict[str, Any], descriptors: int, accepted: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert 128 + 64 + 256 * 4 + 64 == 1280
    assert connection_limit(ServerConfig(enable_custom_logit_processor=True, **options), descriptors) == accepted
    warned = f"{accepted} connections are accepted; raise the limit to {1024 + 1280}" in caplog.text
    assert warned == (accepted < 1024)
