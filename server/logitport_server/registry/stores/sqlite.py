"""A store in a folder of one host, which several servers of the host use at the same time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from logitport.system.backoff import Backoff
from logitport_server.registry.stores.base import Conflict, Index, Store, StoreError, mismatch, new_revision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logitport_server.registry.stores.base import Write

DATABASE = "registry.db"

_BUSY_SECONDS = 5.0
# How long another server of the folder may take to create the database.
_LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.05
# "logp": `file` and other tools recognize the format.
_APPLICATION_ID = 0x6C6F6770
_FORMAT = 1
_SCHEMA = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY NOT NULL, revision TEXT NOT NULL, value BLOB NOT NULL)",
    "CREATE TABLE version (version TEXT NOT NULL)",
    "CREATE TABLE identity (id TEXT NOT NULL)",
    "INSERT INTO identity VALUES (lower(hex(randomblob(16))))",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT}",
)
# Other processes of the server's user can write rows of any type. These are ignored.
_IS_ENTRY = "typeof(key) = 'text' AND typeof(revision) = 'text' AND typeof(value) = 'blob'"
_INDEX = f"SELECT key, revision FROM entries WHERE {_IS_ENTRY}"  # noqa: S608 - no input
# SQLite finds the length without reading the value.
_READ = (
    "SELECT revision, CASE WHEN length(value) <= ? THEN value END FROM entries "  # noqa: S608 - no input
    f"WHERE key = ? AND {_IS_ENTRY}"
)
_RESTORE = "stop its servers and restore the folder from a backup, or start with an empty folder"


class SqliteStore(Store):
    """An SQLite database in a folder. Only the owner has access (folder 0700, files 0600), because it contains code.

    A change happens all or not at all, also if the disk is full or the server is killed. The database is written to a
    temporary file and renamed when it is complete, so an empty or partial database is always an error.

    Args:
        folder: the folder. It is created.

    Raises:
        OSError: the folder cannot be created or used: it belongs to another user, other users have access, or
            another server takes long to create the database.
        StoreError: the database is damaged, or cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE
        self._mutex = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        if not _exists(self._path):
            with _locked(folder / "lock"):
                if not _exists(self._path):
                    with _reported(self._path):
                        _create(self._path)
        self._connection, self.id = _open(self._path)

    def version(self) -> str:
        with self._use() as connection:
            return _version(connection)

    def index(self) -> Index:
        with self._use() as connection, _transaction(connection, "DEFERRED"):
            return Index(_version(connection), dict(connection.execute(_INDEX)))

    def read(self, keys: Sequence[str]) -> dict[str, tuple[str, bytes | None]]:
        found = {}
        with self._use() as connection:
            for key in keys:
                for revision, value in connection.execute(_READ, (self.max_value_bytes, key)):
                    found[key] = (revision, value)
        return found

    def commit(self, writes: Sequence[Write]) -> str:
        revision = new_revision()
        with self._use() as connection, _transaction(connection, "IMMEDIATE"):
            held: dict[str, str] = {}
            for write in writes:
                held.update(connection.execute("SELECT key, revision FROM entries WHERE key = ?", (write.key,)))
            if (key := mismatch(writes, held)) is not None:
                raise Conflict(key)
            for write in writes:
                if write.value is None:
                    connection.execute("DELETE FROM entries WHERE key = ?", (write.key,))
                else:
                    connection.execute("REPLACE INTO entries VALUES (?, ?, ?)", (write.key, revision, write.value))
            connection.execute("UPDATE version SET version = ?", (revision,))
        return revision

    def close(self) -> None:
        with self._mutex:
            self._connection.close()

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, _reported(self._path):
            yield self._connection


def _version(connection: sqlite3.Connection) -> str:
    ((version,),) = connection.execute("SELECT version FROM version")
    return str(version)


def _open(path: Path) -> tuple[sqlite3.Connection, str]:
    """Open and check the database. Returns its id, too. Raises StoreError."""
    with _reported(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            return connection, _check(connection, path)
        except BaseException:
            connection.close()
            raise


def _check(connection: sqlite3.Connection, path: Path) -> str:
    """Check the format and the pages, and prepare the connection. Returns the id. Raises sqlite3.Error, StoreError."""
    application, found = (_pragma(connection, name) for name in ("application_id", "user_version"))
    if application != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it is not a database of logitport")
    if found != _FORMAT:
        raise StoreError(f"{path} has format {found}, and this version reads format {_FORMAT}: use the newer version")
    if (problem := _pragma(connection, "quick_check")) != "ok":
        raise sqlite3.DatabaseError(str(problem))
    _version(connection)
    ((found_id,),) = connection.execute("SELECT id FROM identity")
    if (mode := _pragma(connection, "journal_mode = WAL")) != "wal":
        raise StoreError(
            f"{path} cannot be shared by processes: its file system has no shared memory (journal mode {mode}); "
            "use a folder on a local disk, or --store redis://..."
        )
    # A commit is synced before its caller is answered.
    connection.execute("PRAGMA synchronous = FULL")
    return str(found_id)


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors have ended it
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Context that turns errors of SQLite into StoreError."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:  # the second one: it is closed
        # After a failed sync, the log has the change. A server that is killed before the next one leaves it there.
        raise StoreError(f"{path}: {error}", uncertain=str(error).startswith("disk I/O error")) from error
    except (sqlite3.Error, ValueError) as error:  # ValueError: the table of the version is empty
        raise StoreError(f"{path} is damaged: {error}; {_RESTORE}") from error


def _create(path: Path) -> None:
    temporary = path.with_name(f".new-{path.name}")
    for leftover in (temporary, temporary.with_name(f"{temporary.name}-journal")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    opened = sqlite3.connect(temporary, isolation_level=None)
    with closing(opened) as connection, _transaction(connection, "EXCLUSIVE"):
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO version VALUES (?)", (new_revision(),))
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _exists(path: Path) -> bool:
    """Whether there is a database. Raises StoreError if there is something else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        # Without its database, the log of the last changes is useless: SQLite would delete it.
        if path.with_name(f"{path.name}-wal").exists():
            raise StoreError(f"{path} is missing, and its -wal file is there; {_RESTORE}") from None
        return False
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file; {_RESTORE}")
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Context that locks the file. Raises BlockingIOError if another process holds it for long."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int) -> None:
    backoff = Backoff(_LOCK_PAUSE_SECONDS, _LOCK_PAUSE_SECONDS, seconds=_LOCK_SECONDS)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not backoff.wait():
                raise BlockingIOError("another server takes long to create its database; stop that server") from None
        else:
            return


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        raise PermissionError(f"other users have access to {folder}, which contains code: chmod 700 {folder}")
