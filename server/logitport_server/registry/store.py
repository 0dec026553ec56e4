"""A folder that keeps registered processors across restarts of the server."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from logitport.errors import InternalError
from logitport_server import descriptors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = logging.getLogger(__name__)

_TEMPORARY = ".new-"


class _Stored(BaseModel):
    """The content of one file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    folder: ClassVar[str]

    @property
    def key(self) -> str:
        """The unique key among the files of this kind."""
        raise NotImplementedError


class Registration(_Stored):
    """A registered payload.

    Attributes:
        serialized: the payload's string, unchanged.
        digest: the payload's digest at registration. The catalog compares it with the digest after loading.
        owner: name of the principal that registered it.
        shared: whether all principals may use it.
        registered_at: in seconds since the Unix epoch.
    """

    folder = "processors"
    serialized: str
    digest: str
    owner: str
    shared: bool
    registered_at: float

    @property
    def key(self) -> str:
        return self.digest + self.owner


class Binding(_Stored):
    """The binding of a name to a registration."""

    folder = "names"
    name: str
    digest: str
    owner: str

    @property
    def key(self) -> str:
        return self.name


_KINDS = (Registration, Binding)
_K = TypeVar("_K", Registration, Binding)


class NoStore:
    """A store that keeps nothing: registrations end with the server."""

    def all(self, kind: type[_K]) -> Iterable[_K]:  # noqa: ARG002 - described at `Store`
        """Return everything stored of one kind."""
        return ()

    def save(self, stored: Registration | Binding) -> None:
        """Store it; replace the one with the same key. Raises InternalError if that fails."""

    def delete(self, kind: type[_Stored], *key: str) -> None:
        """Delete the one with this key, if there is one. Raises InternalError if that fails."""

    def close(self) -> None:
        """Release the store for another server."""


class Store(NoStore):
    """A folder with one file for each registration and each name. One server uses it at a time, from one thread.

    A file is written under a temporary name, synced and renamed, so that a crash leaves either the old or the new file
    complete. The first line of a file is the SHA-256 of the rest, and the file name is derived from the content: a file
    that is damaged or has another origin is logged and not changed. Only the owner has access to the folder (mode 0700,
    files 0600), because it contains code.

    Raises:
        OSError: the folder cannot be created or used: it belongs to another user, other users have access, or another
            server uses it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for path in (folder, *(folder / kind.folder for kind in _KINDS)):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(path)
        self._lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BlockingIOError("another server uses it") from None
        for leftover in folder.glob(f"*/{_TEMPORARY}*"):
            leftover.unlink()

    def all(self, kind: type[_K]) -> Iterator[_K]:
        """Yield everything stored of one kind. Unreadable files are logged and skipped."""
        for path in sorted((self._folder / kind.folder).iterdir()):
            try:
                stored = kind.model_validate_json(_read(path))
                if path != self._path(kind, stored.key):
                    raise ValueError("its name does not match its content")
            except (OSError, ValueError) as error:
                logger.error("%s is damaged or was not written by this server; it was not loaded: %s", path, error)
            else:
                yield stored

    def save(self, stored: Registration | Binding) -> None:
        with _as_internal_error():
            _write(self._path(type(stored), stored.key), stored.model_dump_json().encode())

    def delete(self, kind: type[_Stored], *key: str) -> None:
        path = self._path(kind, "".join(key))
        with _as_internal_error():
            path.unlink(missing_ok=True)
            _sync(path.parent)

    def close(self) -> None:
        os.close(self._lock)

    def _path(self, kind: type[_Stored], key: str) -> Path:
        return self._folder / kind.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


@contextmanager
def _as_internal_error() -> Iterator[None]:
    try:
        with descriptors.reported():
            yield
    except OSError as error:
        raise InternalError(f"the server's store cannot be written: {error}; nothing has changed") from error


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        raise PermissionError(f"other users have access to {folder}, which contains code: chmod 700 {folder}")


def _write(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make renames and removals in the folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    """Return what `_write` wrote. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        checksum, _, data = file.read().partition(b"\n")
    if checksum != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("its checksum does not match")
    return data
