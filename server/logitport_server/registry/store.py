"""Registered processors in a folder, so that they outlive the server."""

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = logging.getLogger(__name__)

_TEMPORARY = ".new-"


class _Kept(BaseModel):
    """What one file holds."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    folder: ClassVar[str]

    @property
    def key(self) -> str:
        """What there is only one of."""
        raise NotImplementedError


class Registration(_Kept):
    """A payload, and who registered it when.

    Attributes:
        serialized: the string, as it came.
        digest: what the payload's digest was; whoever loads it checks that it still is.
        owner: name of the principal that registered it.
        shared: whether everyone may use it.
        registered_at: seconds since the Unix epoch.
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


class Binding(_Kept):
    """A name, and the registration that it is bound to."""

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
    """Keeps nothing: what is registered goes with the server."""

    def all(self, kind: type[_K]) -> Iterable[_K]:  # noqa: ARG002 - described at `Store`
        """What is kept of one kind."""
        return ()

    def keep(self, kept: Registration | Binding) -> None:
        """Keep it, in place of the one with the same key. Raises InternalError if that fails."""

    def forget(self, kind: type[_Kept], *key: str) -> None:
        """Forget the one with this key, if it is here. Raises InternalError if that fails."""

    def close(self) -> None:
        """Let another server have what is kept."""


class Store(NoStore):
    """A folder with one file a registration, and one a name. For one thread of one server at a time.

    A file is written beside its place, synced and moved there, so that a crash leaves the old one or the new one whole.
    Its first line is the SHA-256 of the rest, and its name follows from what is in it: a file that is damaged, or was
    put there by somebody else, is reported and left alone. The folder is its owner's alone (0700, files 0600), for
    what lies in it is code.

    Raises:
        OSError: the folder cannot be made or used; it is another's, others can reach into it, or another server uses
            it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for made in (folder, *(folder / kind.folder for kind in _KINDS)):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(made)
        self._lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BlockingIOError("another server uses it") from None
        for leftover in folder.glob(f"*/{_TEMPORARY}*"):
            leftover.unlink()

    def all(self, kind: type[_K]) -> Iterator[_K]:
        """Without the files that cannot be read, which are reported."""
        for path in sorted((self._folder / kind.folder).iterdir()):
            try:
                kept = kind.model_validate_json(_read(path))
                if path != self._path(kind, kept.key):
                    raise ValueError("its name is not that of what is in it")
            except (OSError, ValueError) as error:
                logger.error("%s is damaged, or not this server's, and is left out: %s", path, error)
            else:
                yield kept

    def keep(self, kept: Registration | Binding) -> None:
        with _told():
            _write(self._path(type(kept), kept.key), kept.model_dump_json().encode())

    def forget(self, kind: type[_Kept], *key: str) -> None:
        path = self._path(kind, "".join(key))
        with _told():
            path.unlink(missing_ok=True)
            _sync(path.parent)

    def close(self) -> None:
        os.close(self._lock)

    def _path(self, kind: type[_Kept], key: str) -> Path:
        return self._folder / kind.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InternalError(f"the server's store cannot be written: {error}; nothing has changed") from error


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is another user's")
    if status.st_mode & 0o077:
        raise PermissionError(f"others can reach into {folder}, and what lies there is code: chmod 700 {folder}")


def _write(path: Path, octets: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(octets).hexdigest().encode() + b"\n" + octets)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make what was moved into the folder, or removed from it, outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    """What `_write` wrote. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        checksum, _, octets = file.read().partition(b"\n")
    if checksum != hashlib.sha256(octets).hexdigest().encode():
        raise ValueError("its checksum is wrong")
    return octets
