"""Detection of a server that has stopped without closing its connections, where others could take its sessions.

Not gRPC's keepalive: a server refuses pings more often than every second, and proxies answer them.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session.connection.frame_channel import FrameChannel
    from logitport.session.transports.base import Transport

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.25
# How long a frame must be unanswered before the server is checked. Most are answered within milliseconds.
_QUIET_SECONDS = 1.0
# A server is lost after two checks without an answer: a single one may be late because this process was stopped.
_CHECKS = 2


class StoppedServerWatch:
    """A thread that checks a session's server while a frame is unanswered, and ends the connection if it has stopped.

    A server that answers the check may take any time for the frame: within its own deadlines, as without the watch.

    Args:
        channel: of the session; the thread ends when it is garbage-collected.
        answers: whether the server answers a call that takes it no time. Returns within about a second.
    """

    def __init__(self, channel: FrameChannel, answers: Callable[[], bool]) -> None:
        self._closed = threading.Event()
        threading.Thread(
            target=_watch, args=(weakref.ref(channel), answers, self._closed), name="logitport-stopped", daemon=True
        ).start()

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._closed.set()


def _watch(channel_ref: weakref.ref[FrameChannel], answers: Callable[[], bool], closed: threading.Event) -> None:
    waiting, since, unanswered_checks = None, 0.0, 0
    while not closed.wait(_INTERVAL_SECONDS):
        if channel_ref() is None:
            return
        waits_for = _unanswered(channel_ref)
        if waits_for is None or waits_for != waiting:
            waiting, since, unanswered_checks = waits_for, time.monotonic(), 0
        elif time.monotonic() - since >= _QUIET_SECONDS:
            if answers():
                since, unanswered_checks = time.monotonic(), 0
                continue
            unanswered_checks += 1
            # The frame may have been answered during the check.
            if unanswered_checks == _CHECKS and _unanswered(channel_ref) == waiting:
                connection, _ = waiting
                logger.warning(
                    "%s has answered neither a frame nor %d calls for %.1f s: the session reconnects",
                    connection.target,
                    _CHECKS,
                    time.monotonic() - since,
                )
                connection.lose()


def _unanswered(channel_ref: weakref.ref[FrameChannel]) -> tuple[Transport, int] | None:
    """See `FrameChannel.unanswered`. The thread must not keep a session alive: only this call refers to it."""
    channel = channel_ref()
    return None if channel is None else channel.unanswered
