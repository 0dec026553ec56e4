"""Values that are read from files, and read again when the files change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from logitport_server.lifecycle.start_errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)

T = TypeVar("T")


def file_version(path: Path) -> tuple[int, int, int, int] | None:
    """Return a value that differs after a file was replaced or written, or its permissions have changed.

    Returns:
        The time of its modification in nanoseconds, its size, inode and mode; None if it is not accessible.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


class Reloaded(Generic[T]):
    """A value that is read from files, and read again when they change.

    If that fails, the error is logged once, the previous value stays in use, and the next `refresh` tries again.

    Args:
        what: name in log records, such as "trusted_keys".
        files: returns the files.
        read: reads the value. Raises StartupError.
        describe: describes the value, for the log.

    Attributes:
        value: what was read last.

    Raises:
        StartupError: as `read`.
    """

    def __init__(
        self, what: str, files: Callable[[], Iterable[Path]], read: Callable[[], T], describe: Callable[[T], str]
    ) -> None:
        self._what = what
        self._files = files
        self._read = read
        self._describe = describe
        self._error = ""
        self._versions = self._present_versions()
        self.value = read()

    def refresh(self, *, force: bool = False) -> bool:
        """Read the files again if they have changed, or in any case with `force`. Returns whether they were read."""
        if force:
            self._error = ""
        error = ""
        try:
            versions = self._present_versions()  # first: files that change while they are read are read again
            if versions == self._versions and not force:
                return False
            self.value = self._read()
        except StartupError as failure:
            error = str(failure)
            if error != self._error:
                logger.error(
                    "cannot reload the %s; the previous version stays in use: %s",
                    self._what.replace("_", " "),
                    error,
                    extra={"event": "reload_failed", "what": self._what},
                )
            return False
        finally:
            self._error = error
        self._versions = versions
        logger.info("reloaded %s", self._describe(self.value), extra={"event": "reloaded", "what": self._what})
        return True

    def _present_versions(self) -> list[object]:
        try:
            return [(path, file_version(path)) for path in self._files()]
        except OSError as error:
            raise StartupError(f"cannot list the {self._what.replace('_', ' ')}: {error}") from error
