"""Folders of the format before SQLite."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.registry.records import Binding, Registration, decode
from logitport_server.registry.stores import old_files
from logitport_server.registry.stores.base import Store, StoreError
from logitport_server.registry.stores.opening import open_folder
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.stores.sqlite import DATABASE
from tests.server.registry.stores.faulty_disk import FaultyDisk, faults

if TYPE_CHECKING:
    from logitport_server.registry.records import Record

STORED = Path(__file__).parents[3] / "stored" / "0.1.0" / "registry"
# Required content after a server was killed while it carried out a journal: tests/stored/README.md.
EXPECTED: dict[str, Any] = json.loads((STORED / "interrupted.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy(tmp_path / "store")


def copy(folder: Path) -> Path:
    shutil.copytree(STORED / "interrupted", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def content(store: Store, seal: Seal) -> list[Record]:
    values = store.read(sorted(store.index().revisions))
    return [decode(key, seal.remove(key, value)) for key, (_, value) in values.items()]


def by_key(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.key)


ALL = by_key(
    [Registration(**one) for one in EXPECTED["processors"]] + [Binding(**one) for one in EXPECTED["names"]]  # type: ignore[operator]
)


@pytest.mark.parametrize("seal", [Seal(), Seal(bytes(32))], ids=["without a key", "with a key"])
def test_everything_is_migrated_once(folder: Path, seal: Seal, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        store = open_folder(folder, seal)
        assert by_key(content(store, seal)) == ALL
        store.close()
    assert sorted(path.name for path in folder.iterdir()) == ["before-sqlite", "lock", DATABASE]
    assert caplog.text.count("is damaged or was not written by this server; it was not migrated") == 1
    kept = folder / "before-sqlite"
    assert {path.relative_to(kept) for path in kept.rglob("*")} == {
        path.relative_to(STORED / "interrupted") for path in (STORED / "interrupted").rglob("*")
    }


def test_the_disk_is_full(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for at in faults():
        with FaultyDisk(at, "stays full").mounted():
            try:
                open_folder(folder, Seal()).close()
                break
            except (OSError, StoreError):
                found = {path: path.read_bytes() for path in before if path.exists()}
                if not (folder / DATABASE).exists():
                    assert found == before
    store = open_folder(folder, Seal())
    assert by_key(content(store, Seal())) == ALL
    store.close()
    assert at > 5


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_server_that_is_killed_after_the_migration(folder: Path, moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is complete, and some of the old files have been moved."""

    def rename(source: Path, target: Path) -> None:
        nonlocal moved
        if not moved:
            raise InterruptedError
        moved -= 1
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(old_files, "os", SimpleNamespace(**{**vars(os), "rename": rename}))
        with pytest.raises(InterruptedError):
            open_folder(folder, Seal())
    store = open_folder(folder, Seal())
    assert by_key(content(store, Seal())) == ALL
    store.close()
    assert sorted(path.name for path in folder.iterdir()) == ["before-sqlite", "lock", DATABASE]


def test_a_damaged_journal(folder: Path) -> None:
    (folder / "journal").write_text("half")
    with pytest.raises(OSError, match=r"journal is damaged: .*restore the folder from a backup"):
        open_folder(folder, Seal())
    assert not (folder / DATABASE).exists()


def test_a_file_of_the_journal_is_missing(folder: Path) -> None:
    for path in folder.glob("*/.new-*"):
        path.unlink()
    with pytest.raises(OSError, match=r"is missing; restore the folder from a backup"):
        open_folder(folder, Seal())
    assert not (folder / DATABASE).exists()


def test_damaged_and_foreign_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "processors" / "README").write_text("hello")
    (folder / "processors" / "folder").mkdir()
    (folder / "processors" / "pipe").symlink_to("/dev/zero")
    os.mkfifo(folder / "names" / "fifo")
    store = open_folder(folder, Seal())
    assert by_key(content(store, Seal())) == ALL
    store.close()
    assert caplog.text.count("is damaged or was not written by this server") == 5


def test_servers_that_migrate_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one moves the files away between the checks of this one and its renames."""
    rename = os.rename

    def lose_the_race(source: Path, target: Path) -> None:
        rename(source, target)
        rename(source, target)

    monkeypatch.setattr(old_files, "os", SimpleNamespace(rename=lose_the_race))
    old_files.set_aside(folder)
    assert not (folder / "processors").exists()
    assert (folder / "before-sqlite" / "processors").exists()


def test_a_folder_that_an_earlier_version_has_used_again(folder: Path) -> None:
    """Its registrations would be missing without a message."""
    open_folder(folder, Seal()).close()
    shutil.copytree(STORED / "interrupted" / "processors", folder / "processors")
    with pytest.raises(OSError, match=r"both exist: a server of an earlier version has used .* register them again"):
        open_folder(folder, Seal())
