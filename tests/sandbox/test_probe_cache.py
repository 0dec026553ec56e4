"""Cached results of probes: used only for the same key, and only from files that no other user can write."""

from __future__ import annotations

import json
import logging
import os
import platform
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from logitport_sandbox import LAYER_NAMES, users
from logitport_sandbox.verification import probe_cache
from logitport_sandbox.verification.probe import ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY: dict[str, Any] = {"kernel": "6.1", "layers": ["seccomp"]}
RESULTS = (ProbeResult("Start a process", stopped=True, how="EPERM"),)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of one saved result."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    probe_cache.save(KEY, RESULTS)
    (path,) = (tmp_path / "logitport").iterdir()
    return path


def test_a_saved_result_is_loaded_for_its_key(saved: Path) -> None:
    assert probe_cache.load(KEY) == RESULTS
    assert probe_cache.load({**KEY, "kernel": "6.2"}) is None


def test_only_this_user_can_read_and_write_the_file(saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert stat.S_IMODE(saved.parent.stat().st_mode) == 0o700


def rewrite(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def replace_with_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


CHANGES: dict[str, Callable[[Path], object]] = {
    "writable by its group": lambda path: path.chmod(0o620),
    "writable by all": lambda path: path.chmod(0o602),
    "in a folder writable by others": lambda path: path.parent.chmod(0o777),
    "a link": replace_with_link,
    "a pipe": replace_with_pipe,
    "not JSON": lambda path: path.write_text("{"),
    "not text": lambda path: path.write_bytes(b"\xff\xfe"),
    "empty": lambda path: path.write_text(""),
    "a list": lambda path: path.write_text("[]"),
    "nested deeply": lambda path: path.write_text("[" * 60_000),
    "too long": lambda path: path.write_text(path.read_text() + " " * (1 << 16)),
    "of another key": lambda path: rewrite(path, key={**KEY, "kernel": "5.4"}),
    "without results": lambda path: rewrite(path, results=None),
    "with other fields": lambda path: rewrite(path, results=[{"what": "Start a process", "stopped": True}]),
    "with fields of other types": lambda path: rewrite(path, results=[{"what": "", "stopped": "no", "how": ""}]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_cannot_be_trusted_is_ignored(saved: Path, change: str) -> None:
    CHANGES[change](saved)
    assert probe_cache.load(KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_cache_of_another_user_is_ignored_and_not_written_to(
    saved: Path, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(saved if which == "file" else saved.parent, 65534, 65534)
    with caplog.at_level(logging.WARNING):
        assert probe_cache.load(KEY) is None
    assert "belongs to another user" in caplog.text
    if which == "folder":
        probe_cache.save({"another": "key"}, RESULTS)
        assert list(saved.parent.iterdir()) == [saved]


def test_without_a_writable_folder_or_a_home_nothing_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for folder in (str(tmp_path / "file"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        probe_cache.save(KEY, RESULTS)
        assert probe_cache.load(KEY) is None


def describe() -> dict[str, Any]:
    described = probe_cache.describe(sys.executable, frozenset(LAYER_NAMES))
    assert json.loads(json.dumps(described)) == described
    return described


def test_the_key_changes_with_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [describe()]
    assert describe() == keys[0]
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    keys.append(describe())
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    keys.append(describe())
    monkeypatch.setattr(probe_cache, "_digest_of_sandbox", lambda: "another")
    keys.append(describe())
    monkeypatch.setattr(platform, "uname", lambda: ("Linux", "host", "6.99", "#1", "x86_64"))
    keys.append(describe())
    monkeypatch.setattr(users, "closed_part", lambda path: "/another")
    keys.append(describe())
    keys.append(probe_cache.describe(sys.executable, frozenset({"seccomp"})))
    texts = [json.dumps(key, sort_keys=True) for key in keys]
    assert len(set(texts)) == len(texts)
