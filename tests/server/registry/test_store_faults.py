"""The registry with a full disk, and with a server that is killed, at every system call of a change.

After each fault, the registry in memory and the registry after a restart are equal: that before the change, or that
after it. A change that raises has not happened.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport import InternalError
from logitport_server.principals import ADMIN, APPLY, REGISTER, Principal
from logitport_server.registry import files, registry
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.registry.store import Store
from tests.toy_processors import AddOne, HalveInPlace, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[Registry], object]

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


class Killed(BaseException):
    """The process was killed: it makes no further system calls."""


class FaultyOs:
    """The module `os`, in which system calls that change a disk fail from one of them on.

    Args:
        at: the number of the first call that fails, from 1; None for no fault.
        fault: "once": this call finds a full disk; "stays full": this and later calls that need space do; "killed":
            the process is killed at this call. The first half of a write is written in any case.
    """

    def __init__(self, at: int | None, fault: str) -> None:
        self._at = at
        self._fault = fault
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in ("open", "write", "fsync", "replace", "unlink", "close"):
            return function

        def call(*args: Any) -> Any:
            if name == "close" or (name == "open" and not args[1] & os.O_CREAT):
                return function(*args)  # needs no space, and a kill closes descriptors
            self.calls += 1
            if not self._fails(name):
                return None if name == "fsync" else function(*args)  # there is no loss of power to prepare for
            if name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            if self._fault == "killed":
                raise Killed
            raise OSError(errno.ENOSPC, "No space left on device")

        return call

    def _fails(self, name: str) -> bool:
        if self._at is None or self.calls < self._at:
            return False
        return self.calls == self._at or self._fault == "killed" or (self._fault == "stays full" and name != "unlink")


def open_registry(folder: Path) -> tuple[Registry, Store]:
    store = Store(folder)
    return Registry(POLICY, max_registered=8, max_owned=8, store=store), store


def content(opened: Registry) -> list[Any]:
    return [opened.describe_all(principal) for principal in (ANN, BOB, ROOT)]


def stored_content(folder: Path) -> list[Any]:
    opened, store = open_registry(folder)
    store.close()
    return content(opened)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "time", SimpleNamespace(time=lambda: 1.5))
    monkeypatch.setattr(files, "os", FaultyOs(None, ""))
    opened, store = open_registry(tmp_path / "base")
    opened.register(ONE, "team/one", ANN, replace=False, shared=True)
    opened.register(ONE, "team/uno", ANN, replace=False, shared=True)
    opened.register(ONE, "bob/one", BOB, replace=False)
    opened.register(TWO, "team/two", ANN, replace=False)
    store.close()
    return tmp_path / "base"


def with_fault(
    folder: Path, change: Change, at: int | None, fault: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any] | None, bool, FaultyOs]:
    """Make the change: the content in memory, None if killed; whether the change raised; and the system calls."""
    opened, store = open_registry(folder)
    faulty = FaultyOs(at, fault)
    raised = False
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", faulty)
        try:
            change(opened)
        except InternalError:
            raised = True
        except Killed:
            return None, True, faulty
        finally:
            os.close(store._lock)
    return content(opened), raised, faulty


@pytest.mark.parametrize("fault", ["once", "stays full", "killed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_fault_at_every_system_call(
    base: Path, tmp_path: Path, change: Change, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored_content(base)
    shutil.copytree(base, tmp_path / "after")
    after, _, whole = with_fault(tmp_path / "after", change, None, "", monkeypatch)
    assert stored_content(tmp_path / "after") == after != before
    seen = []
    for at in range(1, whole.calls + 1):
        folder = tmp_path / f"fault {at}"
        shutil.copytree(base, folder)
        in_memory, raised, _ = with_fault(folder, change, at, fault, monkeypatch)
        on_disk = stored_content(folder)
        assert on_disk in (before, after), at
        if in_memory is not None:
            assert in_memory == on_disk == (before if raised else after), at
        assert not list(folder.rglob(".new-*"))
        seen.append(on_disk == after)
    assert seen == sorted(seen)  # there is one moment at which it happens
    assert not seen[0]


def test_the_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, store = open_registry(base)
    monkeypatch.setattr(files, "os", FaultyOs(1, "once"))
    with pytest.raises(InternalError, match=r"store cannot be written: .*No space left on device; nothing has changed"):
        opened.register(THREE, "team/three", ANN, replace=False)
    store.close()


@pytest.mark.slow
def test_processes_that_are_killed(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored_content(base)
    command = [sys.executable, "-m", "tests.server.registry.killed_servers", str(base)]
    subprocess.run(command, check=True)
    for name in CHANGES:
        folders = sorted(tmp_path.glob(f"{name} *[0-9]"), key=lambda folder: int(folder.name.split()[-1]))
        folders = [folder for folder in folders if folder.name.rpartition(" ")[0] == name]
        after = stored_content(folders[-1])
        assert without_times(after) != without_times(before)
        assert len(folders) > 2
        for folder in folders:
            assert without_times(stored_content(folder)) in (without_times(before), without_times(after)), folder


def without_times(listed: list[Any]) -> list[Any]:
    """Drop the times of registration, which are real in other processes."""
    for infos in listed:
        for info in infos:
            info.registered_at = 0.0
    return listed


@pytest.mark.parametrize("name", ["register with a name", "delete a digest of all principals"])
def test_a_server_that_is_killed_again_while_it_starts(
    base: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, before = CHANGES[name], stored_content(base)
    shutil.copytree(base, tmp_path / "after")
    after, _, whole = with_fault(tmp_path / "after", change, None, "", monkeypatch)
    for at in range(1, whole.calls + 1):
        killed = tmp_path / f"killed {at}"
        shutil.copytree(base, killed)
        with_fault(killed, change, at, "killed", monkeypatch)
        for again in range(1, 20):
            folder = tmp_path / f"killed {at} and {again}"
            shutil.copytree(killed, folder)
            with monkeypatch.context() as patch:
                patch.setattr(files, "os", FaultyOs(again, "killed"))
                try:
                    files.Files(folder)
                    break
                except Killed:
                    assert stored_content_after_repair(folder) in (before, after)
        else:
            pytest.fail("a start makes too many system calls")


def stored_content_after_repair(folder: Path) -> list[Any]:
    files.os = FaultyOs(None, "")  # type: ignore[assignment] # restored by the caller's context
    return stored_content(folder)


def test_a_change_after_one_that_is_not_carried_out(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal is written, and the disk is full from then on: the change has happened, the next one waits for it."""
    opened, store = open_registry(base)
    for at in range(1, 30):
        faulty = FaultyOs(at, "stays full")
        monkeypatch.setattr(files, "os", faulty)
        try:
            opened.delete(DIGEST, ROOT)
            break
        except InternalError:
            assert content(opened) == stored_content_of_copy(base, tmp_path / f"copy {at}", monkeypatch)
            monkeypatch.setattr(files, "os", faulty)
    assert "may not survive a loss of power" in caplog.text
    with pytest.raises(InternalError, match="nothing has changed"):
        opened.register(THREE, "team/one", BOB, replace=False)
    monkeypatch.setattr(files, "os", FaultyOs(None, ""))
    opened.register(THREE, "team/one", BOB, replace=False)
    store.close()
    assert stored_content(base) == content(opened)


def stored_content_of_copy(folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    shutil.copytree(folder, copy)
    monkeypatch.setattr(files, "os", FaultyOs(None, ""))
    return stored_content(copy)
