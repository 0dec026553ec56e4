"""A limit of log lines about events that callers cause, so that one of them cannot fill the log."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    import logging

_INTERVAL_SECONDS = 1.0
# Names of principals may come from certificates: their number has no limit.
_MAX_KEYS = 1024


@dataclass
class _Recent:
    logged_at: float
    unlogged: int = 0


class LogLimit:
    """Allows one line a second for each key. Thread-safe."""

    def __init__(self) -> None:
        self._recent: BoundedTable[str, _Recent] = BoundedTable(_MAX_KEYS)
        self._lock = threading.Lock()

    def take(self, key: str, events: int = 1) -> int | None:
        """Return the number of earlier events that were not logged, if these may be; else count them, return None."""
        now = time.monotonic()
        with self._lock:
            recent = self._recent.get(key)
            if recent is not None and now - recent.logged_at < _INTERVAL_SECONDS:
                recent.unlogged += events
                return None
            self._recent[key] = _Recent(now)
            return 0 if recent is None else recent.unlogged

    def warn(self, logger: logging.Logger, key: str, message: str, *args: object) -> None:
        """Log a warning, with the number of earlier ones of this key that were not logged, if it may be logged."""
        unlogged = self.take(key)
        if unlogged is not None:
            logger.warning(f"{message} (%d earlier lines were left out)", *args, unlogged)
