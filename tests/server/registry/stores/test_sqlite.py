"""The folder of SQLite: access, damage, and processes that start at the same time."""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.stores import sqlite
from logitport_server.registry.stores.base import Store, StoreError, Write
from logitport_server.registry.stores.sqlite import DATABASE, SqliteStore
from tests.server.registry.stores.faulty_disk import FaultyDisk, faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def values(store: Store) -> dict[str, bytes]:
    return {key: value for key, (_, value) in store.read(list(store.index().revisions)).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one value."""
    folder = tmp_path / "deep" / "store"
    store = SqliteStore(folder)
    store.commit([Write("a", bytes(20_000))])
    store.close()
    return folder


def test_values_survive_a_restart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    store = SqliteStore(folder.relative_to(folder.parent))
    assert values(store) == {"a": bytes(20_000)}
    store.close()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", DATABASE]


def test_the_id_survives_a_restart_and_is_random(folder: Path, tmp_path: Path) -> None:
    ids = []
    for path in (folder, folder, tmp_path / "other"):
        store = SqliteStore(path)
        ids.append(store.id)
        store.close()
    assert ids[0] == ids[1] != ids[2]


def test_modes(folder: Path) -> None:
    store = SqliteStore(folder)
    store.commit([Write("b", b"")])
    names = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert names == {"lock": 0o600, DATABASE: 0o600, f"{DATABASE}-wal": 0o600, f"{DATABASE}-shm": 0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    store.close()


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_folder_with_access_for_other_users(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 700 {tmp_path}"):
        SqliteStore(tmp_path)


def overwrite(at: int, data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:at] + data + path.read_bytes()[at + len(data) :])


def set_pragma(name: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA {name} = 7")

    return change


def link(path: Path) -> None:
    path.rename(path.parent.parent / "other")
    path.symlink_to(path.parent.parent / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b""), "is damaged: .*restore the folder from a backup"),
        (lambda path: path.write_bytes(bytes(8192)), "is damaged"),
        (lambda path: path.write_bytes(b"hello" * 1000), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:4096]), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4096]), "is damaged"),
        (overwrite(4096, b"\xff" * 104), "is damaged"),
        (set_pragma("application_id"), "is not a database of logitport"),
        (set_pragma("user_version"), "has format 7"),
        (lambda path: path.rename(f"{path}-wal"), "is missing, and its -wal file is there"),
        (link, "is not a regular file"),
    ],
)
def test_another_file_is_never_an_empty_store(folder: Path, change: Callable[[Path], object], message: str) -> None:
    change(folder / DATABASE)
    content = {path: path.read_bytes() for path in folder.glob(f"{DATABASE}*")}
    with pytest.raises(StoreError, match=message):
        SqliteStore(folder)
    assert {path: path.read_bytes() for path in content} == content


def test_a_database_that_is_damaged_while_it_is_used(folder: Path) -> None:
    store, other = SqliteStore(folder), sqlite3.connect(folder / DATABASE)
    other.execute("DELETE FROM version")
    other.commit()
    other.close()
    for use in (store.version, store.index):
        with pytest.raises(StoreError, match="is damaged"):
            use()
    store.close()


def test_another_server_creates_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.1)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another server takes long to create its database"):
            SqliteStore(tmp_path)
    SqliteStore(tmp_path).close()


def test_a_database_is_complete_or_missing(tmp_path: Path) -> None:
    """The disk is full at each write while a database is created."""
    for at in faults():
        folder = tmp_path / str(at)
        disk = FaultyDisk(at, "stays full")
        with disk.mounted():
            try:
                SqliteStore(folder).close()
                break
            except (OSError, StoreError):
                assert disk.calls >= at
        store = SqliteStore(folder)
        assert values(store) == {}
        assert store.version() != ""
        store.close()
        assert sorted(path.name for path in folder.iterdir()) == ["lock", DATABASE]
    assert at > 5


def test_a_broken_disk_leaves_a_change_uncertain(folder: Path) -> None:
    store = SqliteStore(folder)
    for fault, uncertain in (("once", False), ("broken", True)):
        with FaultyDisk(1, fault).mounted(), pytest.raises(StoreError) as raised:
            store.commit([Write("b", b"")])
        assert raised.value.uncertain == uncertain
    assert list(values(store)) == ["a"]
    store.close()
    with pytest.raises(StoreError, match="closed database"):
        store.version()


WRITER = """
import sys
from pathlib import Path
from logitport_server.registry.stores.base import Conflict, Write
from logitport_server.registry.stores.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
try:
    store.commit([Write("number", b"0")])
except Conflict:
    pass
for _ in range(50):
    while True:
        revision, value = store.read(["number"])["number"]
        try:
            store.commit([Write("number", b"%d" % (int(value) + 1), revision)])
            break
        except Conflict:
            pass
store.close()
"""


@pytest.mark.slow
def test_processes_that_start_and_write_at_the_same_time(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder)]) for _ in range(4)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    store = SqliteStore(folder)
    assert values(store) == {"number": b"200"}
    store.close()


@pytest.mark.parametrize(
    "row", ["x'fffe', 'r', x''", "'b', x'00', x''", "'b', 'r', 'text'", "'b', 'r', 7", "x'61', 'r', x''"]
)
def test_rows_of_other_types_are_ignored(folder: Path, row: str) -> None:
    """Another process of the server's user can write them."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute(f"INSERT INTO entries VALUES ({row})")
    store = SqliteStore(folder)
    assert values(store) == {"a": bytes(20_000)}
    assert store.read(["b"]) == {}
    store.close()
