"""When a principal's process is idle."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport_server.principal_process import open_streams
from logitport_server.principal_process.open_streams import OpenStreams

if TYPE_CHECKING:
    import pytest

SECONDS = 60.0


def test_it_is_idle_once_after_the_last_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "_IDLE_SECONDS", 0.0)
    streams = OpenStreams()
    assert not streams.wait_until_idle(0.01), "there was no stream"
    streams.begin()
    streams.begin()
    streams.end()
    assert not streams.wait_until_idle(0.01), "one is open"
    streams.end()
    assert streams.wait_until_idle(SECONDS)
    assert not streams.wait_until_idle(0.01)


def test_the_end_of_the_last_stream_is_noticed_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "_IDLE_SECONDS", 0.0)
    streams, noticed = OpenStreams(), threading.Event()
    streams.begin()
    waiting = threading.Thread(target=lambda: streams.wait_until_idle(SECONDS) and noticed.set())
    waiting.start()
    streams.end()
    assert noticed.wait(SECONDS)
    waiting.join()


def test_it_is_not_idle_between_streams_that_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "_IDLE_SECONDS", SECONDS)
    streams = OpenStreams()
    streams.begin()
    streams.end()
    assert not streams.wait_until_idle(0.01)
    streams.begin()
    assert not streams.wait_until_idle(0.01)
