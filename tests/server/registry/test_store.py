"""The store: atomic writes, private files, and checks of everything that is read."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.store import Binding, Registration, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE = Registration(serialized='{"callable": "é"}', digest="ab" * 32, owner="", shared=False, registered_at=1.5)
SHARED = ONE.model_copy(update={"owner": "team", "shared": True})
NAME = Binding(name="a/" * 63 + "b:v1", digest=ONE.digest, owner="team")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    opened = Store(folder)
    opened.change(saved=[ONE, SHARED, NAME])
    yield opened
    opened.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def stored(store: Store) -> tuple[list[Registration], list[Binding]]:
    return sorted(store.all(Registration), key=lambda one: one.key), list(store.all(Binding))


def test_content_survives_a_restart(folder: Path, store: Store) -> None:
    store.close()
    again = Store(folder)
    assert stored(again) == ([ONE, SHARED], [NAME])
    store._lock = os.dup(again._lock)  # for the fixture to close
    again.close()


def test_deleting(store: Store) -> None:
    store.change(deleted=[ONE])
    assert stored(store) == ([SHARED], [NAME])
    store.change(deleted=[ONE, NAME])
    assert stored(store) == ([SHARED], [])
    store.change()
    assert stored(store) == ([SHARED], [])


def test_a_new_binding_replaces_the_old_one(store: Store) -> None:
    moved = NAME.model_copy(update={"digest": "cd" * 32})
    store.change(saved=[moved])
    assert stored(store)[1] == [moved]


def test_modes(folder: Path, store: Store) -> None:
    folders = {path for path in folder.rglob("*") if path.is_dir()} | {folder}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in (*files(folder), folder / "lock")} == {0o600}


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_folder_with_access_for_other_users(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 700 {tmp_path}"):
        Store(tmp_path)


def test_two_servers(folder: Path, store: Store) -> None:
    with pytest.raises(BlockingIOError, match="another server"):
        Store(folder)


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_damaged_byte(folder: Path, store: Store, at: int, caplog: pytest.LogCaptureFixture) -> None:
    for path in files(folder):
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= 1
        path.write_bytes(data)
    assert stored(store) == ([], [])
    assert caplog.text.count("is damaged") == 3


@pytest.mark.parametrize("length", [0, 1, 64, 65, 100])
def test_a_truncated_file(folder: Path, store: Store, length: int) -> None:
    for path in files(folder):
        os.truncate(path, length)
    assert stored(store) == ([], [])


def test_foreign_files(folder: Path, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (registration, _), name = files(folder)[1:], files(folder)[0]
    (folder / "processors" / "README").write_text("hello")
    (folder / "processors" / "folder").mkdir()
    (folder / "processors" / "pipe").symlink_to("/dev/zero")
    os.mkfifo(folder / "names" / "fifo")
    outside = tmp_path / "outside.json"
    registration.replace(outside)
    registration.symlink_to(outside)
    name.rename(name.with_name("0" * 64 + ".json"))  # a moved file has the path of another name
    registrations, names = stored(store)
    assert (len(registrations), names) == (1, [])
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 6


def test_a_file_of_the_other_kind(folder: Path, store: Store) -> None:
    for path in files(folder / "processors"):
        path.replace(folder / "names" / path.name)
    assert stored(store) == ([], [NAME])


def test_temporary_files_of_a_crash_are_removed(folder: Path, store: Store) -> None:
    leftovers = [folder / "names" / ".new-abc", folder / ".new-abc"]
    for leftover in leftovers:
        leftover.write_text("half")
    store.close()
    Store(folder).close()
    assert not any(leftover.exists() for leftover in leftovers)
    store._lock = os.open(folder / "lock", os.O_RDWR)  # for the fixture to close


def test_a_damaged_journal(folder: Path, store: Store) -> None:
    (folder / "journal").write_text("half")
    store.close()
    with pytest.raises(OSError, match=r"journal is damaged: .*restore the folder from a backup"):
        Store(folder)
    store._lock = os.open(folder / "lock", os.O_RDWR)  # for the fixture to close
