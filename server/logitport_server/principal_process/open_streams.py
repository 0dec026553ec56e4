"""Counts the open streams of a principal's process."""

from __future__ import annotations

import threading
import time

# Between the end of the last stream and `wait_until_idle`: a principal that calls again and again is not idle.
_IDLE_SECONDS = 2.0


class OpenStreams:
    """Counts streams, and waits for the time when none is open. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._idle_since: float | None = None
        self._is_awaited = False

    def begin(self) -> None:
        """Count a stream."""
        with self._changed:
            self._count += 1
            self._idle_since = None

    def end(self) -> None:
        """Count the end of a stream."""
        with self._changed:
            self._count -= 1
            if not self._count:
                self._idle_since = time.monotonic()
                if self._is_awaited:
                    self._changed.notify()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no stream has been open for two seconds. Returns True once after the end of a stream.

        Args:
            seconds: how long to wait at most; False is returned then.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while (now := time.monotonic()) < deadline:
                since = self._idle_since
                if since is not None and now >= since + _IDLE_SECONDS:
                    self._idle_since = None
                    return True
                self._is_awaited = since is None  # otherwise an end need not wake this thread
                self._changed.wait((deadline if since is None else min(deadline, since + _IDLE_SECONDS)) - now)
        return False
