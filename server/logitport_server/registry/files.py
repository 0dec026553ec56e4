"""Changes of several files that happen all or not at all, also if the disk is full or the process is killed.

New contents are first written to temporary files and synced. A change of one file is then one rename or removal, which
is atomic. A larger change writes a journal, the list of its renames and removals, and renames it into place: that is
the moment at which all of it has happened. The journal is carried out, and removed. If that is interrupted, it is
carried out again before the next change, and at the next start; doing that twice has no further effect.

SQLite was considered. After a failed sync of its write-ahead log, a change that was reported as failed can be there
after a restart; one damaged page affects all entries, where here a damaged file is one entry; and a folder of files can
be backed up by copying it. Its atomic changes are all that is needed of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

_TEMPORARY = ".new-"
_JOURNAL = "journal"


class _Plan(BaseModel):
    """The renames and removals of a change, by paths relative to the folder.

    Attributes:
        renamed: temporary file and file of each new content.
        removed: files to remove.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    renamed: list[list[str]]
    removed: list[str]

    def __len__(self) -> int:
        return len(self.renamed) + len(self.removed)


class Files:
    """The files of a folder and its direct subfolders. Each holds a checksum and its data. Not thread-safe.

    Raises:
        OSError: an interrupted change cannot be completed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsynced: set[Path] = set()
        self._complete()
        for leftover in (*folder.glob(f"{_TEMPORARY}*"), *folder.glob(f"*/{_TEMPORARY}*")):
            leftover.unlink()

    def change(self, written: Mapping[str, bytes], removed: Iterable[str] = ()) -> None:
        """Write and remove files, by their paths relative to the folder. Removing a file that is not there is no error.

        Raises:
            OSError: nothing has changed.
        """
        self._complete()
        temporary: list[str] = []
        try:
            for name, data in written.items():
                temporary.append(self._stage(os.path.dirname(name), data))
            plan = _Plan(renamed=[list(pair) for pair in zip(temporary, written, strict=True)], removed=list(removed))
            if len(plan) == 1:
                self._carry_out(plan)
            elif plan:
                self._sync()  # the journal must not survive a loss of power without the files that it names
                temporary.append(self._stage("", plan.model_dump_json().encode()))
                os.replace(self._folder / temporary[-1], self._folder / _JOURNAL)
                self._unsynced.add(self._folder)
        except OSError:
            for name in temporary:
                with suppress(OSError):
                    os.unlink(self._folder / name)
            raise
        try:
            self._complete()
        except OSError as error:
            logger.error("a change of %s has happened, but may not survive a loss of power: %s", self._folder, error)

    def _complete(self) -> None:
        """Carry out the journal, if there is one, and sync what has changed."""
        try:
            plan = _Plan.model_validate_json(read(self._folder / _JOURNAL))
        except FileNotFoundError:
            self._sync()
            return
        except ValueError as error:
            raise OSError(f"{self._folder / _JOURNAL} is damaged: {error}; restore the folder from a backup") from error
        self._sync()
        self._carry_out(plan)
        self._sync()
        os.unlink(self._folder / _JOURNAL)
        # A journal that came back after a loss of power would undo later changes.
        self._unsynced.add(self._folder)
        self._sync()

    def _carry_out(self, plan: _Plan) -> None:
        for temporary, name in plan.renamed:
            path = self._folder / name
            try:
                os.replace(self._folder / temporary, path)
            except FileNotFoundError:
                if not path.exists():
                    raise
            self._unsynced.add(path.parent)
        for name in plan.removed:
            path = self._folder / name
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._unsynced.add(path.parent)

    def _stage(self, subfolder: str, data: bytes) -> str:
        """Write a temporary file with mode 0600, and sync it. Returns its path."""
        name = os.path.join(subfolder, _TEMPORARY + secrets.token_hex(8))
        path = self._folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self._unsynced.add(path.parent)
        return name

    def _sync(self) -> None:
        """Make renames and removals survive a loss of power."""
        for folder in sorted(self._unsynced):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._unsynced.discard(folder)


def read(path: Path) -> bytes:
    """Return the data of a file that `Files` has written. Raises OSError, ValueError if it is damaged."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        checksum, _, data = file.read().partition(b"\n")
    if checksum != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("its checksum does not match")
    return data
