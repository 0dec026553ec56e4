"""The thread that waits for replies, and a connection that ends during calls of the engine."""

from __future__ import annotations

import socket
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("epoll is Linux's", allow_module_level=True)

from logitport.session.transports.watch import ReplyWatch


def test_a_connection_that_ends_during_calls_raises_nothing() -> None:
    for _ in range(1500):
        ours, theirs = socket.socketpair()
        watch = ReplyWatch(ours, lambda: None)
        theirs.close()
        for _ in range(30):
            watch.leave()
            watch.claim()
        watch.join()
        watch.leave()
        ours.close()
