"""Files with processors: what is found in them, and what happens when they are saved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument
from logitport_play.watched_files import Files, WatchedFile
from tests.play.conftest import FILE

if TYPE_CHECKING:
    from pathlib import Path

ONE = """
from logitport import EditProcessor

class One(EditProcessor):
    def edit(self, request, edits):
        edits.deny([{id}])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(ONE.format(id=1))
    return path


def test_the_processors_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all.py"
    path.write_text(
        FILE
        + """
import functools
from abc import abstractmethod
from logitport import CustomLogitProcessor
from logitport.dialects import InDialect

class Base(EditProcessor):
    @abstractmethod
    def edit(self, request, edits): ...

class _Private(Boost): ...

class NotAProcessor: ...

class Called:
    def __call__(self, input_ids, scores):
        return scores

instance = Called()
part = functools.partial(flatter, strength=2.0)
named = InDialect(lambda ids, logits: None, "dynamo")
number = 3
"""
    )
    file = WatchedFile(path)
    assert file.error == ""
    assert [*file.processors] == ["Boost", "Fails", "flatter", "Called", "instance", "part", "named"]


def test_a_saved_file_is_loaded_again_also_with_its_size_and_within_a_second(path: Path) -> None:
    file = WatchedFile(path)
    first, version, time = file.processors["One"], file.version, path.stat().st_mtime_ns
    file.refresh()
    assert file.processors["One"] is first
    path.write_text(ONE.format(id=3))
    os.utime(path, ns=(time + 1_000_000, time + 1_000_000))
    file.refresh()
    assert file.processors["One"].edit.__code__.co_consts != first.edit.__code__.co_consts
    assert file.version > version
    assert 0 <= file.seconds_since_saved < 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:", "SyntaxError"),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = 1\n1 / 0", 'mine.py", line 2, in <module>'),
        ("\0", "SyntaxError"),
    ],
)
def test_the_last_good_version_goes_on(path: Path, text: str, message: str) -> None:
    file = WatchedFile(path)
    good = file.processors["One"]
    path.write_text(text)
    file.refresh()
    assert message in file.error
    assert "logitport_play" not in file.error
    assert file.processors == {"One": good}
    at_the_start = WatchedFile(path)
    assert (at_the_start.processors, message in at_the_start.error) == ({}, True)
    path.write_text(ONE.format(id=5))
    file.refresh()
    assert file.error == ""
    assert file.processors["One"] is not good


def test_a_file_that_an_editor_replaces(path: Path) -> None:
    file = WatchedFile(path)
    path.unlink()
    file.refresh()
    assert [*file.processors] == ["One"]
    path.write_text(ONE.format(id=4) + "\nTwo = One\n")
    file.refresh()
    assert [*file.processors] == ["One", "Two"]


def test_helpers_beside_a_file_can_be_imported(path: Path) -> None:
    (path.parent / "helper_of_this_test.py").write_text("ID = 6")
    path.write_text("from helper_of_this_test import ID\n" + ONE.format(id="ID"))
    assert WatchedFile(path).error == ""


def test_files_by_name(path: Path, tmp_path: Path) -> None:
    files = Files([path])
    assert files.find("mine.py:One").__name__ == "One"
    for name in ("mine.py:Two", "other.py:One", "mine.py", "", str(path)):
        with pytest.raises(InvalidArgument):
            files.find(name)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine.py").write_text("")
    with pytest.raises(InvalidArgument, match="another file has this name"):
        Files([path, tmp_path / "x" / "mine.py"])
    with pytest.raises(InvalidArgument, match="no such file"):
        Files([tmp_path / "none.py"])
    assert Files([]).version == 0
