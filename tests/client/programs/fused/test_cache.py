"""Only shared objects are loaded that no other user can have changed."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from logitport.programs.fused import cache
from logitport.programs.fused.compiler import Compiler

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of files need POSIX")
KEY = "ab" * 32


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.store(KEY, b"an object")


def test_an_object_is_found_again(stored: Path) -> None:
    assert cache.load(KEY) == stored
    assert stored.read_bytes() == b"an object"
    assert cache.load("cd" * 32) is None


def test_files_and_folders_are_private(stored: Path) -> None:
    old = os.umask(0)
    try:
        again = cache.store("cd" * 32, b"another")
    finally:
        os.umask(old)
    for path in (stored, again, *stored.parent.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (stored.parent, stored.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("data", [b"", b"an objec", b"An object"])
def test_an_object_that_is_damaged_is_not_loaded(stored: Path, data: bytes) -> None:
    stored.write_bytes(data)
    assert cache.load(KEY) is None
    cache.store(KEY, b"an object")
    assert cache.load(KEY) == stored


def test_an_object_that_others_can_write_is_not_loaded(stored: Path) -> None:
    stored.chmod(0o622)
    assert cache.load(KEY) is None
    stored.chmod(0o600)
    assert cache.load(KEY) == stored


@pytest.mark.parametrize("above", [0, 1, 2])
def test_an_object_in_a_folder_that_others_can_write_is_not_loaded(stored: Path, above: int) -> None:
    stored.parents[above].chmod(0o777)
    assert cache.load(KEY) is None
    stored.parents[above].chmod(0o700)
    assert cache.load(KEY) == stored


def test_an_object_of_another_user_is_not_loaded(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: stored.stat().st_uid + 1)
    assert cache.load(KEY) is None


def test_a_link_is_not_followed(stored: Path, tmp_path: Path) -> None:
    stored.rename(tmp_path / "elsewhere")
    stored.symlink_to(tmp_path / "elsewhere")
    assert cache.load(KEY) is None


def test_a_path_outside_of_the_cache_is_not_loaded(stored: Path, tmp_path: Path) -> None:
    outside = tmp_path / stored.name
    outside.write_bytes(stored.read_bytes())
    with pytest.raises(PermissionError):
        cache.checked(outside, cache.digest_of(stored))


def test_keys_differ_by_source_compiler_and_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_cpu", lambda: "one")
    one = Compiler(("/usr/bin/c++",), "12")
    keys = {cache.key_of("a", one), cache.key_of("b", one), cache.key_of("a", one._replace(version="13"))}
    monkeypatch.setattr(cache, "_cpu", lambda: "another")
    assert len(keys | {cache.key_of("a", one)}) == 4


def test_old_objects_are_removed(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MAX_ENTRIES", 2)
    os.utime(stored, (1, 1))
    for key in ("cd", "ef"):
        cache.store(key * 32, b"another")
    assert cache.load(KEY) is None
    assert len(list(stored.parent.iterdir())) == 4
