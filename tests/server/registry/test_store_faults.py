"""The registry with a full disk, and with a server that is killed, at every write of a change.

After each fault, the registry in memory and the registry after a restart are equal: that before the change, or that
after it. A change that raises has not happened.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LogitportError
from logitport_runner.local_registry import LocalRegistry
from logitport_server.registry import registry
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.stores.sqlite import SqliteStore
from logitport_session.trust.principals import ADMIN, APPLY, REGISTER, Principal
from tests.server.registry.stores.faulty_disk import FaultyDisk, faults
from tests.toy_processors import AddOne, HalveInPlace, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[LocalRegistry], object]

ONE, TWO, THREE = Unchanged.to_str(), AddOne.to_str(), HalveInPlace.to_str()
ANN, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("ann", "bob"))
ROOT = Principal("root", frozenset({APPLY, REGISTER, ADMIN}))
POLICY = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
DIGEST = POLICY.accept(ONE).digest

CHANGES: dict[str, Change] = {
    "register": lambda opened: opened.register(THREE, "", ANN, replace=False),
    "register with a name": lambda opened: opened.register(THREE, "team/three", ANN, replace=False, shared=True),
    "bind a name again": lambda opened: opened.register(TWO, "team/one", ANN, replace=True, shared=True),
    "share no more": lambda opened: opened.register(ONE, "", ANN, replace=False),
    "share no more, with a name": lambda opened: opened.register(ONE, "team/new", ANN, replace=False),
    "delete a name": lambda opened: opened.delete("team/one", ANN),
    "delete a digest": lambda opened: opened.delete(DIGEST, ANN),
    "delete a digest of all principals": lambda opened: opened.delete(DIGEST, ROOT),
}


def open_registry(folder: Path) -> tuple[LocalRegistry, SqliteStore]:
    store = SqliteStore(folder)
    return LocalRegistry(POLICY, max_registered=8, max_owned=8, store=store), store


def content(opened: LocalRegistry) -> list[Any]:
    return [opened.describe_all(principal) for principal in (ANN, BOB, ROOT)]


def stored_content(folder: Path) -> list[Any]:
    opened, store = open_registry(folder)
    store.close()
    return content(opened)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "time", SimpleNamespace(time=lambda: 1.5))
    opened, store = open_registry(tmp_path / "base")
    opened.register(ONE, "team/one", ANN, replace=False, shared=True)
    opened.register(ONE, "team/uno", ANN, replace=False, shared=True)
    opened.register(ONE, "bob/one", BOB, replace=False)
    opened.register(TWO, "team/two", ANN, replace=False)
    store.close()
    return tmp_path / "base"


def with_fault(folder: Path, change: Change, disk: FaultyDisk) -> tuple[list[Any], bool]:
    """Make the change. Returns the content in memory, which is the same after a poll, and whether the change raised."""
    opened, store = open_registry(folder)
    raised = False
    with disk.mounted():
        try:
            change(opened)
        except LogitportError:
            raised = True
    in_memory = content(opened)
    opened.poll()
    assert content(opened) == in_memory
    store.close()
    return in_memory, raised


@pytest.mark.parametrize("fault", ["once", "stays full"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.slow
def test_a_fault_at_every_write(base: Path, tmp_path: Path, change: Change, fault: str) -> None:
    before = stored_content(base)
    shutil.copytree(base, tmp_path / "after")
    after, _ = with_fault(tmp_path / "after", change, FaultyDisk())
    assert stored_content(tmp_path / "after") == after != before
    for at in faults():
        folder = tmp_path / f"fault {at}"
        shutil.copytree(base, folder)
        disk = FaultyDisk(at, fault)
        in_memory, raised = with_fault(folder, change, disk)
        assert in_memory == stored_content(folder) == (before if raised else after), at
        if disk.calls < at:
            break
        assert raised
    assert at > 2


def test_the_error_and_the_next_change(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened, store = open_registry(base)
    with (
        FaultyDisk(1, "stays full").mounted(),
        pytest.raises(LogitportError, match=r"store cannot be used: .*registry.db: .* full; nothing has changed"),
    ):
        opened.register(THREE, "team/three", ANN, replace=False)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("a call of the registry has failed: the store cannot be used: ")
    opened.register(THREE, "team/three", ANN, replace=False)
    store.close()
    assert stored_content(base) == content(opened)


@pytest.mark.slow
def test_processes_that_are_killed(base: Path, tmp_path: Path) -> None:
    before = stored_content(base)
    command = [sys.executable, "-m", "tests.server.registry.killed_servers", str(base)]
    subprocess.run(command, check=True)
    for name in CHANGES:
        folders = sorted(tmp_path.glob(f"{name} *[0-9]"), key=lambda folder: int(folder.name.split()[-1]))
        folders = [folder for folder in folders if folder.name.rpartition(" ")[0] == name]
        *killed, after = [without_times(stored_content(folder)) for folder in folders]
        assert after != without_times(before)
        assert len(killed) > 2
        # The last write completes the commit, and its half does not.
        assert all(found == without_times(before) for found in killed)


def without_times(listed: list[Any]) -> list[Any]:
    """Drop the times of registration, which are real in other processes."""
    for infos in listed:
        for info in infos:
            info.registered_at = 0.0
    return listed
