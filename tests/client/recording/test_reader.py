"""Recordings whose events do not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport.core.row_edits import EditKind
from logitport.errors import InvalidRecording
from logitport.recording import chunks
from logitport.recording.codec import encode
from logitport.recording.events import RecordedRow, RequestBegan, RequestStepped, SessionOpened, TopLogits
from logitport.recording.reader import read_recording

if TYPE_CHECKING:
    from pathlib import Path

NONE = np.empty(0, np.int32)
OPENED = SessionOpened(100, "FP32")
BEGAN = RequestBegan(0, "a", NONE, NONE, (), {})


def read(path: Path, row: RecordedRow, new_ids: tuple[int, ...] = ()) -> None:
    step = RequestStepped(0, 0, 0, np.array(new_ids, np.int32), NONE, (row,))
    path.write_bytes(chunks.FILE_HEADER + chunks.pack(1, b"".join(map(encode, (OPENED, BEGAN, step)))))
    read_recording(path)


@pytest.mark.parametrize("token_id", [-1, 100, 1 << 30])
@pytest.mark.parametrize("where", ["edits", "before", "after"])
def test_ids_outside_of_a_row_are_an_error(tmp_path: Path, where: str, token_id: int) -> None:
    def row(one: int) -> RecordedRow:
        ids = np.array([one], np.int32)
        values = ((EditKind.DENY, ids, None),) if where == "edits" else TopLogits(ids, np.zeros(1, np.float32), 0.0)
        return RecordedRow(**{where: values})

    read(tmp_path / "file", row(99))
    with pytest.raises(InvalidRecording, match="step 0 of request 0"):
        read(tmp_path / "file", row(token_id))


def test_a_history_may_have_any_ids(tmp_path: Path) -> None:
    read(tmp_path / "file", RecordedRow(), (-1, 100, 5))
