"""The folder of a server, and folders that killed servers left."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from logitport_server.transports.runtime_folder import RuntimeFolder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_removed_when_closed(temporary: Path) -> None:
    folder = RuntimeFolder()
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "session.sock").touch()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_folders_of_running_servers_are_kept(temporary: Path) -> None:
    first, second = RuntimeFolder(), RuntimeFolder()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.close()
    second.close()


def test_folders_of_killed_servers_are_removed(temporary: Path) -> None:
    killed = (
        "import os; from logitport_server.transports.runtime_folder import RuntimeFolder; RuntimeFolder(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    (left,) = temporary.iterdir()
    (left / "session.sock").touch()
    folder = RuntimeFolder()
    assert list(temporary.iterdir()) == [folder.path]
    folder.close()


def test_other_files_and_folders_are_kept(temporary: Path) -> None:
    """A folder without a lock belongs to another program, or to a server that is starting."""
    (temporary / "logitport-by-hand").mkdir()
    (temporary / "logitport-file").touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (temporary / "logitport-link").symlink_to(elsewhere)
    locked = temporary / "logitport-linked-lock"
    locked.mkdir()
    (locked / "lock").symlink_to(elsewhere / "lock")
    before = set(temporary.rglob("*"))
    RuntimeFolder().close()
    assert set(temporary.rglob("*")) == before


def test_child_processes_do_not_inherit_the_lock(temporary: Path) -> None:
    """A worker that outlives the server would otherwise keep the folder locked."""
    folder = RuntimeFolder()
    assert fcntl.fcntl(folder._lock, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    folder.close()
