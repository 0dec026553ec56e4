"""Recordings made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import Edits
from logitport.core.row_edits import RowEdits
from logitport_proto.common_pb2 import Request
from logitport_proto.processing_pb2 import OpenSession
from logitport_proto.recording_pb2 import RecordedEvent, RequestBegan, RequestStepped, SessionBegan, TopLogits
from logitport_recording.events import encode
from logitport_recording.members import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.core.row_edits import Edit
    from logitport_proto import common_pb2
    from logitport_proto.recording_pb2 import RecordedProcessor, RecordedRow


def column(ids: Iterable[int]) -> bytes:
    return np.array([*ids], "<i4").tobytes()


def opened(vocab_size: int = 100, datatype: str = "FP32", **fields: Any) -> RecordedEvent:
    opening = OpenSession(vocab_size=vocab_size, datatype=datatype, **fields)
    return RecordedEvent(session_began=SessionBegan(opening=opening))


def began(
    key: int, name: str = "", prompt: Sequence[int] = (), chain: Sequence[RecordedProcessor] = (), **fields: Any
) -> RecordedEvent:
    request = Request(request_id=name, prompt_ids=column(prompt), **fields)
    return RecordedEvent(request_began=RequestBegan(key=key, request=request, processors=chain))


def stepped(
    key: int, index: int, base: int = 0, new_ids: Sequence[int] = (), rows: Sequence[RecordedRow] = (), **fields: Any
) -> RecordedEvent:
    step = RequestStepped(key=key, index=index, base_length=base, new_token_ids=column(new_ids), rows=rows, **fields)
    return RecordedEvent(request_stepped=step)


def edits(*row_edits: Edit, vocab_size: int = 100) -> common_pb2.Edits:
    row = RowEdits()
    for edit in row_edits:
        row.say(*edit)
    return Edits.pack([(0, row)], vocab_size).to_proto()


def top(ids: Sequence[int], logits: Sequence[float] | None = None, log_sum: float = 1.0) -> TopLogits:
    values = np.zeros(len(ids), "<f4") if logits is None else np.array(logits, "<f4")
    return TopLogits(ids=column(ids), logits=values.tobytes(), log_sum=log_sum)


def content(*events: RecordedEvent, session_id: int = 1) -> bytes:
    """The events of a session, serialized."""
    parts = []
    for event in events:
        event.session_id = session_id
        parts.append(encode(event))
    return b"".join(parts)


def member(*events: RecordedEvent, session_id: int = 1) -> bytes:
    """A file with the events of a session, or its part."""
    return pack([content(*events, session_id=session_id)])


def file_of(parts: list[bytes]) -> tuple[bytes, list[int]]:
    """A file with a member for each part, and the borders of its members."""
    data, borders = b"", [0]
    for part in parts:
        data += pack([part])
        borders.append(len(data))
    return data, borders
