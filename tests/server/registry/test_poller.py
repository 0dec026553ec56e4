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


def test_the_last_call_is_after_the_close() -> None:
    """Changes since the last call are not lost."""
    calls: list[int] = []
    poller = Poller(lambda: calls.append(1), interval_seconds=1e4)
    poller.start()
    assert not calls
    poller.close()
    assert calls == [1]


def test_a_last_call_that_waits_is_left_behind() -> None:
    released = threading.Event()
    poller = Poller(lambda: released.wait() and None, interval_seconds=1e4)
    poller.start()
    poller.close(seconds=0.01)
    released.set()


def test_two_intervals_are_less_than_the_promised_time() -> None:
    """A quarantine waits for the poll of its server and for that of another one. docs/operating.md promises 3 s."""
    assert 2 * INTERVAL_SECONDS < 3


def test_it_can_be_woken() -> None:
    called = threading.Event()
    poller = Poller(called.set, interval_seconds=3600)
    poller.start()
    poller.wake()
    assert called.wait(60)
    poller.close()
    assert not any(thread.name == "logitport-registry" for thread in threading.enumerate())
