"""A thread that follows the changes of other servers."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# A quarantine is stored at once, and read at the next poll of the others. With the time of reading, that takes less
# than 3 s, also if the store could not be used at first.
INTERVAL_SECONDS = 1.0
# Time for the last call. One that waits for a network is left behind: the thread is a daemon.
_LAST_SECONDS = 3.0


class Poller:
    """Calls a function at intervals, and once more at the end, on a thread of its own.

    Args:
        poll: the function. An exception is logged, and the next call follows after the interval.
        interval_seconds: time between the end of a call and the next one.
    """

    def __init__(self, poll: Callable[[], None], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._poll = poll
        self._interval_seconds = interval_seconds
        self._waking = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="logitport-registry", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next call at once."""
        self._waking.set()

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Call the function a last time, and stop the thread. Does nothing if it was not started.

        Args:
            seconds: how long to wait for the call in progress and the last one.
        """
        self._is_stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._waking.wait(self._interval_seconds)
            self._waking.clear()
            is_last = self._is_stopping
            try:
                self._poll()
            except Exception:
                logger.exception("the registry could not be synchronized with the store")
            if is_last:
                return
