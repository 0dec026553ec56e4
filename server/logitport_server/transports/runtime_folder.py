"""A server's folder for its socket, and those that dead servers have left."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_PREFIX = "logitport-"
_LOCK = "lock"


class RuntimeFolder:
    """A folder (0700) among the temporary ones, there as long as the server is.

    A server that is killed leaves it behind; the next one clears it away. Whoever holds the lock in a folder lives,
    whatever process ids mean where it runs.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        _clear_away_those_of_the_dead()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        unlocked = self.path / "unlocked"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # only now may others try it

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _clear_away_those_of_the_dead() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid == os.geteuid():
                _clear_away(folder)
        except OSError as error:  # it has no lock, so it is no server's; or it went by itself
            logger.debug("%s is left alone: %s", folder, error)


def _clear_away(folder: Path) -> None:
    """Remove the folder if nobody holds its lock. Raises OSError if somebody does, or if it has none."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
        logger.info("cleared away %s, which a server left that was killed", folder)
    finally:
        os.close(descriptor)
