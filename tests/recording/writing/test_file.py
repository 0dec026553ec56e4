"""The file: its mode, its writers, and what killed ones leave."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport_proto.recording_pb2 import RecordedEvent, SessionBegan
from logitport_recording.events import MAX_EVENT_BYTES, encode
from logitport_recording.members import PREFIX, end_of_last, pack
from logitport_recording.reading.unpacking import read
from logitport_recording.writing.file import RESERVED_BYTES, FileFull, RecordingFile
from tests.recording.reading.build import file_of

if TYPE_CHECKING:
    from pathlib import Path

LARGE = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.lprec"


def events(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [item for item in read(file) if not isinstance(item, int)]


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(InvalidArgument, match=r"the recording .* cannot be opened: embedded null byte"):
        RecordingFile("engine\0.lprec", LARGE)


def test_only_the_owner_reads_it(path: Path) -> None:
    RecordingFile(path, LARGE).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    RecordingFile(path, LARGE).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_writers_append(path: Path) -> None:
    first, second = RecordingFile(path, LARGE), RecordingFile(path, LARGE)
    for number in range(3):
        first.append(pack([b"first%d" % number]))
        second.append(pack([b"second%d" % number]))
    assert events(path) == [b"first0", b"second0", b"first1", b"second1", b"first2", b"second2"]
    first.close()
    second.close()


def test_what_a_killed_writer_has_left_is_cut_off(path: Path) -> None:
    running = RecordingFile(path, LARGE)
    running.append(pack([b"one"]))
    with path.open("ab") as file:
        file.write(pack([b"torn"])[:-3])
    running.append(pack([b"two"]))
    with path.open("ab") as file:
        file.write(pack([b"torn again"])[:5])
    later = RecordingFile(path, LARGE)
    later.append(pack([b"three"]))
    assert events(path) == [b"one", b"two", b"three"]
    running.close()
    later.close()


def test_a_cut_first_member_is_written_again(path: Path) -> None:
    path.write_bytes(PREFIX[:5])
    file = RecordingFile(path, LARGE)
    file.append(pack([b"one"]))
    assert events(path) == [b"one"]
    file.close()


def test_nothing_is_appended_to_other_files(path: Path) -> None:
    for content in (b"notes", b"n" * 100):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match="nothing is appended to it"):
            RecordingFile(path, LARGE)
        assert path.read_bytes() == content


def test_nothing_is_cut_off_a_damaged_file(path: Path) -> None:
    content = pack([b"one"]) + b"other bytes" + pack([b"one"])
    path.write_bytes(content)
    file = RecordingFile(path, LARGE)
    with pytest.raises(InvalidArgument, match="damaged at byte 33"):
        file.append(pack([b"two"]))
    assert path.read_bytes() == content
    file.close()


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "other")
    for path in (tmp_path, tmp_path / "missing" / "file", pipe, link):
        with pytest.raises(InvalidArgument, match="recording"):
            RecordingFile(path, LARGE)
    assert not (tmp_path / "other").exists()


def test_the_largest_size(path: Path) -> None:
    size = 2 * len(pack([b"one"])) + RESERVED_BYTES
    file = RecordingFile(path, size)
    file.append(pack([b"one"]))
    file.append(pack([b"two"]))
    with pytest.raises(FileFull):
        file.append(pack([b"six"]))
    file.append(pack([b"end"]), last=True)
    assert events(path) == [b"one", b"two", b"end"]
    file.close()


FULL_DISK = """
import resource, sys
from logitport_recording.members import pack
from logitport_recording.writing.file import RecordingFile
file = RecordingFile(sys.argv[1], 1 << 30)
file.append(pack([b"one"]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    file.append(pack([bytes(range(256)) * 4]))
except OSError as error:
    print(type(error).__name__)
file.append(pack([b"two"]))
"""


def test_a_disk_that_is_full_leaves_whole_chunks(path: Path) -> None:
    """The limit of a file's size stops a write in its middle, as a full disk does."""
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert (run.stdout, run.stderr) == ("OSError\n", "")
    assert events(path) == [b"one", b"two"]


PARTS = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


@given(PARTS)
def test_every_reader_of_gzip_reads_a_file(parts: list[bytes]) -> None:
    assert gzip.decompress(file_of(parts)[0]) == b"".join(parts)


@given(PARTS, st.data())
def test_the_end_of_the_last_whole_member_of_a_file_that_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    written, borders = file_of(parts)
    cut = data.draw(st.integers(1, len(written)))
    assert end_of_last(io.BytesIO(written[:cut]), 0, cut) == max(border for border in borders if border <= cut)


def test_an_event_that_a_reader_would_refuse_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(RecordedEvent(session_began=SessionBegan(sdk_version="a" * MAX_EVENT_BYTES)))
