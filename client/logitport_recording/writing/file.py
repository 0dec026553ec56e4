"""The file of a recording, which sessions and processes append to."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_recording.members import PREFIX, end_of_last

try:
    import fcntl
except ImportError:  # Windows: a file of one process has one writer
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

# Kept free for the events that tell why sessions have stopped.
RESERVED_BYTES = 4096


class FileFull(Exception):  # noqa: D101 - never leaves the writer
    pass


class RecordingFile:
    """An open file, readable and writable by its owner alone.

    Only its last member can be incomplete: a writer holds a lock, and cuts off what a killed one has left.

    Args:
        path: the file. It is created if needed.
        max_bytes: its largest size.

    Raises:
        InvalidArgument: it cannot be opened, or is another file.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path = os.fspath(path)
        self.max_bytes = max_bytes
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        # Not through a link that another user has placed; and a pipe must not block.
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except (OSError, ValueError) as error:  # the latter for a path with NUL
            raise InvalidArgument(f"the recording {self.path} cannot be opened: {error}") from error
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise
        # The border of a member: the file is complete up to here.
        self._end = 0

    def append(self, member: bytes, *, last: bool = False) -> None:
        """Write a member, all of it or nothing.

        Args:
            member: as `members.pack` makes it.
            last: whether it may use the reserved bytes.

        Raises:
            FileFull: the file would exceed its largest size.
            OSError: it cannot be written.
            InvalidArgument: what others have written to it is damaged.
        """
        with self._locked():
            end = self._complete_end()
            if end + len(member) + (0 if last else RESERVED_BYTES) > self.max_bytes:
                raise FileFull
            self._write(end, member)
            self._end = end + len(member)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _check(self) -> None:
        found = os.fstat(self._file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArgument(f"the recording {self.path} is no regular file; write the path of one")
        begin = self._file.read(len(PREFIX))
        if begin != PREFIX[: len(begin)]:
            raise InvalidArgument(f"{self.path} exists, and nothing is appended to it: it is no recording")
        if stat.S_IMODE(found.st_mode) & 0o077:
            with suppress(OSError):  # of another user, who has given access to it
                os.fchmod(self._file.fileno(), 0o600)

    def _complete_end(self) -> int:
        """The end of the last complete member. The file is cut there."""
        size = os.fstat(self._file.fileno()).st_size
        if size == self._end:
            return size
        end = end_of_last(self._file, self._end if self._end < size else 0, size)
        if end < size:
            os.ftruncate(self._file.fileno(), end)
        return end

    def _write(self, end: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if fcntl is None:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
