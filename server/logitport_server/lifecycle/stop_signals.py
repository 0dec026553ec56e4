"""SIGTERM and SIGINT of a server, from the moment on when it has something to remove."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StoppedBeforeReady(BaseException):
    """SIGTERM or SIGINT was received before the server was ready."""


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer the handlers of SIGTERM and SIGINT to the end of the context; in threads but the main one it does nothing.

    For what outlives the process, from its creation to the moment when its removal is certain. Blocking the signals
    of this thread lost: another thread receives them, and the main thread runs the handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number_received in received[:1]:
            signal.raise_signal(number_received)


class StopSignals:
    """Handles the first SIGTERM or SIGINT. A second one ends the process at once.

    The first one raises `StoppedBeforeReady` in the main thread until `watch` is called.
    SIGHUP is ignored until the server handles it: it has not read its files yet, or reads them again when they change.
    Only the main thread may create it and call its methods.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        for number in _NUMBERS:
            signal.signal(number, self._raise)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def watch(self) -> asyncio.Event:
        """Return an event that the running event loop sets when a signal is received, or was received before."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        def receive(received: int) -> None:
            for number in _NUMBERS:
                loop.remove_signal_handler(number)
            self._receive(received)
            stopping.set()

        for number in _NUMBERS:
            loop.add_signal_handler(number, receive, number)
        if self._received is not None:  # a library has swallowed `StoppedBeforeReady`
            receive(self._received)
        return stopping

    @contextmanager
    def ending_the_process(self) -> Iterator[None]:
        """End the process by the signal if the context raises after one. Shells and service managers read the status.

        Any exception may be a consequence: SIGINT of a terminal ends other processes of the server, too.
        """
        try:
            yield
        except BaseException:
            if self._received is not None:
                os.kill(os.getpid(), self._received)
            raise

    def _raise(self, received: int, _: object) -> None:
        self._receive(received)
        raise StoppedBeforeReady

    def _receive(self, received: int) -> None:
        self._received = received
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_DFL)
