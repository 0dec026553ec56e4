"""Values that are read again when their files change."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.reloaded import Reloaded, file_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Text:
    """The text of a folder's files. A file with "invalid" is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads = 0
        self.after_read: Callable[[], object] = lambda: None
        self.files = Reloaded("text", lambda: sorted(folder.iterdir()), self.read, lambda text: f"{len(text)} letters")

    def read(self) -> str:
        self.reads += 1
        text = "".join(path.read_text() for path in sorted(self.folder.iterdir()))
        self.after_read()
        if "invalid" in text:
            raise StartupError("it is invalid")
        return text


@pytest.fixture
def text(tmp_path: Path) -> Text:
    (tmp_path / "a").write_text("one")
    return Text(tmp_path)


def test_files_are_read_only_if_they_have_changed(text: Text, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert not text.files.refresh()
    assert text.reads == 1
    (text.folder / "b").write_text(" two")
    assert text.files.refresh()
    assert text.files.value == "one two"
    (text.folder / "a").unlink()
    assert text.files.refresh()
    assert text.files.value == " two"
    assert not text.files.refresh()
    assert [record.getMessage() for record in caplog.records] == ["reloaded 7 letters", "reloaded 4 letters"]
    assert {(record.event, record.what) for record in caplog.records} == {("reloaded", "text")}  # type: ignore[attr-defined]


def test_an_error_is_logged_once_and_the_next_refresh_tries_again(text: Text, caplog: pytest.LogCaptureFixture) -> None:
    (text.folder / "a").write_text("invalid")
    for _ in range(3):
        assert not text.files.refresh()
    assert (text.files.value, text.reads) == ("one", 4)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reload the text; the previous version stays in use: it is invalid"
    ]
    (text.folder / "a").write_text("valid")
    assert text.files.refresh()
    (text.folder / "a").write_text("invalid again")
    assert not text.files.refresh()
    assert len(caplog.records) == 2, "after a success, the same error is logged again"


def test_a_change_during_the_read_is_read_by_the_next_refresh(text: Text) -> None:
    (text.folder / "a").write_text("two")
    text.after_read = lambda: (text.folder / "a").write_text("three")
    assert text.files.refresh()
    assert text.files.value == "two"
    text.after_read = lambda: None
    assert text.files.refresh()
    assert text.files.value == "three"


def test_a_value_that_cannot_be_read_at_first_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("invalid")
    with pytest.raises(StartupError, match="invalid"):
        Text(tmp_path)


def test_a_replaced_file_and_changed_permissions_are_another_version(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("same")
    other.write_text("same")
    versions = [file_version(file)]
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    versions.append(file_version(file))
    file.chmod(0o600 if file.stat().st_mode & 0o077 else 0o644)
    versions.append(file_version(file))
    file.unlink()
    versions.append(file_version(file))
    assert versions[-1] is None
    assert len(set(versions)) == 4


def test_files_that_cannot_be_listed_do_not_end_the_refresh(
    text: Text, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> list[Path]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(text.files, "_files", refused)
        assert not text.files.refresh()
    assert "cannot list the text: [Errno 24] Too many open files" in caplog.text
    (text.folder / "a").write_text("later")
    assert text.files.refresh()
    assert text.files.value == "later"


def test_a_forced_refresh_reads_unchanged_files(text: Text) -> None:
    assert text.files.refresh(force=True)
    assert text.reads == 2
