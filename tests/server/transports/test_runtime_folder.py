"""The folder of a server, and those that servers left that were killed."""

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


def test_it_is_its_owners_alone_and_goes(temporary: Path) -> None:
    folder = RuntimeFolder()
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "session.sock").touch()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_the_living_are_left_alone(temporary: Path) -> None:
    first, second = RuntimeFolder(), RuntimeFolder()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.close()
    second.close()


def test_those_of_the_dead_are_cleared_away(temporary: Path) -> None:
    killed = (
        "import os; from logitport_server.transports.runtime_folder import RuntimeFolder; RuntimeFolder(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    (left,) = temporary.iterdir()
    (left / "session.sock").touch()
    folder = RuntimeFolder()
    assert list(temporary.iterdir()) == [folder.path]
    folder.close()


def test_what_is_no_servers_is_left_alone(temporary: Path) -> None:
    """A folder without lock is another's, or of a server that is just starting."""
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


def test_a_lock_that_a_child_of_a_living_server_does_not_hold(temporary: Path) -> None:
    """The server's descriptor must not be inherited: a worker that outlives it would keep the folder."""
    folder = RuntimeFolder()
    assert fcntl.fcntl(folder._lock, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    folder.close()
