"""Delays between launches."""

from __future__ import annotations

from logitport_server.lifecycle.launch_backoff import LaunchBackoff
from tests.clock import Clock


def test_only_the_first_launch_is_not_delayed() -> None:
    clock = Clock()
    backoff = LaunchBackoff(clock)
    assert [backoff.next() for _ in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.now = 60.0  # the last launch was delayed by 30 s, and the process lived for 30 s
    assert backoff.next() == 30.0
    clock.now = 60.0 + 30.0 + 60.0
    assert backoff.next() == 0.0
