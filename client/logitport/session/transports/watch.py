"""A thread that has replies taken in while the engine is busy elsewhere."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

# What wakes the thread, once; a connection's end does in any case.
_A_REPLY = select.EPOLLIN | select.EPOLLONESHOT
_NO_REPLY = select.EPOLLONESHOT


class ReplyWatch:
    """Waits for the replies that are left to it, until the connection is shut down at either end.

    Of an engine that waits for a reply by itself it must not wake up, too: both would want the interpreter.

    Args:
        connection: whose replies.
        take_in: what to call when there is one.
    """

    def __init__(self, connection: socket.socket, take_in: Callable[[], object]) -> None:
        self._take_in = take_in
        # Of the watch's own: epoll would hear no more of one that is closed elsewhere, its end included.
        self._descriptor = os.dup(connection.fileno())
        self._epoll = select.epoll()
        self._closing = threading.Lock()
        self._epoll.register(self._descriptor, _NO_REPLY)
        self._thread = threading.Thread(target=self._run, name="logitport-reader", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """The thread may have the next reply."""
        self._wake_on(_A_REPLY)

    def claim(self) -> None:
        """Whoever calls reads the next reply, unless the thread has been woken for it already."""
        self._wake_on(_NO_REPLY)

    def join(self) -> None:
        """Wait for the thread, unless this is it, once the connection was shut down."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wake_on(self, events: int) -> None:
        with self._closing:
            if not self._epoll.closed:  # as it is once the thread has seen the end
                self._epoll.modify(self._descriptor, events)

    def _run(self) -> None:
        events = 0
        while not events & select.EPOLLHUP:
            ((_, events),) = self._epoll.poll()
            self.claim()  # else epoll would not tell of the end any more
            self._take_in()
        with self._closing:
            self._epoll.close()
        os.close(self._descriptor)
