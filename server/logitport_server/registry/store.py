"""A folder that keeps registered processors across restarts of the server."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from logitport.errors import InternalError
from logitport_server import descriptors
from logitport_server.registry.files import Files, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)


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

    def change(self, *, saved: Iterable[Registration | Binding] = (), deleted: Iterable[_Stored] = ()) -> None:
        """Save and delete all of these, or none. A saved one replaces the one with the same key.

        Raises:
            InternalError: the store cannot be written. Nothing has changed.
        """

    def close(self) -> None:
        """Release the store for another server."""


class Store(NoStore):
    """A folder with one file for each registration and each name. One server uses it at a time, from one thread.

    A change happens all or not at all, also if the disk is full or the server is killed; see `files`. The first line of
    a file is the SHA-256 of the rest, and the file name is derived from the content: a file that is damaged or has
    another origin is logged and not changed. Only the owner has access to the folder (mode 0700, files 0600), because
    it contains code.

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
        try:
            self._files = Files(folder)
        except BaseException:
            os.close(self._lock)
            raise

    def all(self, kind: type[_K]) -> Iterator[_K]:
        """Yield everything stored of one kind. Unreadable files are logged and skipped."""
        for path in sorted((self._folder / kind.folder).iterdir()):
            try:
                stored = kind.model_validate_json(read(path))
                if path != self._folder / _name(stored):
                    raise ValueError("its name does not match its content")
            except (OSError, ValueError) as error:
                logger.error("%s is damaged or was not written by this server; it was not loaded: %s", path, error)
            else:
                yield stored

    def change(self, *, saved: Iterable[Registration | Binding] = (), deleted: Iterable[_Stored] = ()) -> None:
        with _as_internal_error():
            self._files.change(
                {_name(one): one.model_dump_json().encode() for one in saved}, [_name(one) for one in deleted]
            )

    def close(self) -> None:
        os.close(self._lock)


def _name(stored: _Stored) -> str:
    """Return the path of its file, relative to the folder of the store."""
    return f"{stored.folder}/{hashlib.sha256(stored.key.encode()).hexdigest()}.json"


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
