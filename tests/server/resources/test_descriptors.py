"""The limit of open files, and errors when it is reached."""

from __future__ import annotations

import errno
import logging
import resource
import time

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


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_is_the_servers(number: int) -> None:
    expected = pytest.raises(LimitExceeded, match=r"the server is out of file descriptors; .* raise the limit")
    with expected, descriptors.reported():
        raise OSError(number, "no more")


def test_other_errors_are_no_shortage() -> None:
    for error in (OSError(errno.ENOMEM, "no memory"), ValueError("24")):
        with pytest.raises(type(error)), descriptors.reported():
            raise error


def test_the_cause_of_an_error_is_found() -> None:
    error = ValueError("cannot be read")
    assert not descriptors.is_shortage(error)
    error.__cause__ = OSError(errno.EMFILE, "no more")
    assert descriptors.is_shortage(error)


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


def test_few_sessions_leave_connections_for_others() -> None:
    assert connection_limit(ServerConfig(max_sessions_per_principal=1), 1 << 20) == 1024
    assert connection_limit(ServerConfig(max_sessions_per_principal=100), 1 << 20) == 1600


@pytest.mark.parametrize(
    ("descriptors", "accepted"),
    [
        (1 << 20, 1024),
        (1024 + 1280, 1024),
        (1024 + 1279, 1023),
        (1024, 256),
        (2, 1),
    ],
)
def test_connections_leave_descriptors_for_sessions_and_workers(
    descriptors: int, accepted: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(enable_custom_logit_processor=True)
    reserve = 128 + 64 + 256 * 4 + 64
    assert reserve == 1280
    assert connection_limit(config, descriptors) == accepted
    warned = f"{accepted} connections are accepted; raise the limit to {1024 + reserve}" in caplog.text
    assert warned == (accepted < 1024)


def test_what_is_off_needs_no_descriptors() -> None:
    assert connection_limit(ServerConfig(local_transport=False), 1024 + 128 + 256 * 4) == 1024
