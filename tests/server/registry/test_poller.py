"""The thread that follows the changes of other servers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport_server.registry.poller import INTERVAL_SECONDS, Poller
from tests.waiting import wait_until

if TYPE_CHECKING:
    import pytest


def test_it_calls_until_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def poll() -> None:
        calls.append(threading.get_ident())
        raise ZeroDivisionError

    poller = Poller(poll, interval_seconds=0.001)
    poller.start()
    wait_until(lambda: len(calls) > 3)
    poller.close()
    assert not any(thread.name == "logitport-registry" for thread in threading.enumerate())
    (thread,) = set(calls)
    assert thread != threading.get_ident()
    assert "could not be synchronized" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_one_that_was_not_started() -> None:
    Poller(lambda: None).close()


def test_two_intervals_are_less_than_the_promised_time() -> None:
    """A quarantine waits for the poll of its server and for that of another one. docs/operating.md promises 3 s."""
    assert 2 * INTERVAL_SECONDS < 3
