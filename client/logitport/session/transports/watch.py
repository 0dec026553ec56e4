"""A thread that receives replies while the engine does other work; the compiled core has `EarlyReceiver` instead."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from logitport.compiled import core

# Events that wake the thread, once. The end of the connection wakes it in any case.
_A_REPLY = select.EPOLLIN | select.EPOLLONESHOT
_NO_REPLY = select.EPOLLONESHOT


class ReplyWatch:
    """Waits for the replies that are left to it, until the connection is shut down at either end.

    The thread must not wake up for a reply that the engine's thread is waiting for: both would compete for the GIL. It
    competes with the engine's other work, too, which `EarlyReceiver` avoids.

    Args:
        connection: the socket on which the replies arrive.
        take_early: called when a reply that was left has arrived, and when the connection ends. Returns whether it has
            received a reply: then the next one is probably left, too, and `leave` is not needed.

    Attributes:
        watches: whether the thread wakes up for the next reply.
    """

    def __init__(self, connection: socket.socket, take_early: Callable[[], object]) -> None:
        self._take_early = take_early
        self.watches = False
        # A duplicate: epoll drops a descriptor that is closed elsewhere, and would not report the connection's end.
        self._descriptor = os.dup(connection.fileno())
        self._epoll = select.epoll()
        self._closing = threading.Lock()
        self._epoll.register(self._descriptor, _NO_REPLY)
        self._thread = threading.Thread(target=self._run, name="logitport-reader", daemon=True)
        self._thread.start()

    def leave(self, reader: core.ReplyReader | None, seq: int, num_rows: int) -> None:  # noqa: ARG002
        """Leave the next reply to the thread."""
        if not self.watches:
            self._wake_on(_A_REPLY)

    def claim(self) -> bytes:
        """Reserve the next reply for the caller, unless the thread has been woken for it already. Returns b""."""
        if self.watches:
            self._wake_on(_NO_REPLY)
        return b""

    def join(self) -> None:
        """Wait for the thread, after the connection was shut down. Does nothing on the thread itself."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wake_on(self, events: int) -> None:
        with self._closing:
            if not self._epoll.closed:  # the thread closes it when the connection ends
                self._epoll.modify(self._descriptor, events)
                self.watches = events == _A_REPLY

    def _run(self) -> None:
        events = 0
        while not events & select.EPOLLHUP:
            ((_, events),) = self._epoll.poll()
            self.watches = False
            # Arms the one-shot event again: without it, epoll would not report the connection's end.
            self._wake_on(_A_REPLY if self._take_early() else _NO_REPLY)
        with self._closing:
            self._epoll.close()
        os.close(self._descriptor)
