"""A server's temporary folder for its socket, and the removal of folders that killed servers left behind."""

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
    """A folder (mode 0700) in the system's folder for temporary files, removed when the server stops.

    A killed server leaves its folder behind, and the next server removes it. A server holds a file lock in its folder
    while it runs. Process ids are not used instead: they differ between containers that share the temporary folder.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self) -> None:
        _remove_abandoned_folders()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            self._lock = os.open(self.path / "unlocked", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # After it is locked, so that no other server finds it unlocked.
            (self.path / "unlocked").rename(self.path / _LOCK)
        except BaseException:  # without a lock no other server removes it
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        """Remove the folder, and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid == os.geteuid():
                _remove_if_abandoned(folder)
        except OSError as error:  # it has no lock file, its lock is held, or another server has just removed it
            logger.debug("%s is not removed: %s", folder, error)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove the folder of a killed server. Raises OSError if its lock is held, or if it has no lock file."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
        logger.info("removed %s, which a killed server had left behind", folder)
    finally:
        os.close(descriptor)
