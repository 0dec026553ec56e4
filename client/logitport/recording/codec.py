"""Events of a recording as bytes. Each has its kind, a JSON object, and numbers in columns."""

from __future__ import annotations

import struct
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport.core.row_edits import EditKind
from logitport.errors import InvalidArgument
from logitport.recording.events import (
    RecordedProcessor,
    RecordedRow,
    RecordingStopped,
    RequestBegan,
    RequestEnded,
    RequestStepped,
    SessionOpened,
    StepsDropped,
    TopLogits,
)
from logitport.recording.field_types import check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from logitport.core.row_edits import Edit
    from logitport.recording.events import Event

# Kind, length of the JSON, length of the columns.
_HEAD = struct.Struct("<BII")
# Of the objects of an event. Arrays have a head of 112 bytes, and tuples and dicts have their own.
_BYTES_OF_EVENT = 300
_BYTES_OF_VALUE = 100
_KINDS: dict[type[Any], int] = {
    SessionOpened: 1,
    RequestBegan: 2,
    RequestStepped: 3,
    RequestEnded: 4,
    StepsDropped: 5,
    RecordingStopped: 6,
}
_TYPES = {kind: event for event, kind in _KINDS.items()}


def encode(event: Event) -> bytes:
    """Convert an event to bytes."""
    columns = _Columns()
    if isinstance(event, RequestBegan):
        meta = _of_request(event, columns)
    elif isinstance(event, RequestStepped):
        meta = _of_step(event, columns)
    else:
        meta = asdict(event)
    text, data = orjson.dumps(meta), b"".join(columns.parts)
    return _HEAD.pack(_KINDS[type(event)], len(text), len(data)) + text + data


def decode(data: bytes, reserve: Callable[[int], object] = int) -> Iterator[Event]:
    """Convert bytes to events. Those of an unknown kind, of a later version, are left out.

    Args:
        data: the bytes.
        reserve: called before an event is decoded, with the bytes of memory that it will take; may raise.

    Raises:
        InvalidArgument: these are no events.
    """
    at = 0
    try:
        while at < len(data):
            kind, text_length, column_length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            end = at + text_length + column_length
            if end > len(data):
                raise InvalidArgument("an event ends after its chunk")
            if kind in _TYPES:
                text = data[at : at + text_length]
                reserve(_memory_of(text) + column_length)
                meta = orjson.loads(text)
                event = _event(_TYPES[kind], meta, _Reader(data, at + text_length, end))
                check_types(event)
                yield event
            at = end
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"an event cannot be read: {error!r}") from error


def _memory_of(text: bytes) -> int:
    """Estimate the memory of an event without its columns: at most about twice what it takes.

    Each value of JSON follows one of these characters. Rows and edits, which take most, have two of them or more.
    """
    values = sum(map(text.count, (b",", b"[", b"{", b":")))
    return _BYTES_OF_EVENT + _BYTES_OF_VALUE * values + len(text)


class _Columns:
    """Collects columns of little-endian numbers."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def add(self, values: NDArray[Any], dtype: str) -> int:
        """Add a column. Returns its length."""
        self.parts.append(np.asarray(values).astype(dtype, copy=False).tobytes())
        return len(values)


class _Reader:
    """Reads columns in their order."""

    def __init__(self, data: bytes, begin: int, end: int) -> None:
        self._data = data
        self._at = begin
        self._end = end

    def take(self, count: int, dtype: str) -> NDArray[Any]:
        found = np.dtype(dtype)
        if count < 0 or self._at + count * found.itemsize > self._end:
            raise InvalidArgument(f"a column of {count} numbers ends after its event")
        column = np.frombuffer(self._data, found, count, self._at)
        self._at += count * found.itemsize
        return column.astype(found.newbyteorder("="), copy=False)


def _of_request(event: RequestBegan, columns: _Columns) -> dict[str, Any]:
    return {
        "key": event.key,
        "request_id": event.request_id,
        "prompt": columns.add(event.prompt, "<i4"),
        "output": columns.add(event.output, "<i4"),
        "processors": [asdict(processor) for processor in event.processors],
        "sampling_params": event.sampling_params,
        "on_error": event.on_error,
    }


def _of_step(event: RequestStepped, columns: _Columns) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "key": event.key,
        "index": event.index,
        "base": event.base_length,
        "new": columns.add(event.new_ids, "<i4"),
        "rows": [],
    }
    if len(event.draft_ids):
        meta["drafts"] = columns.add(event.draft_ids, "<i4")
    if event.greedy:
        meta["greedy"] = True
    if not event.finished:
        meta["finished"] = False
    if event.error:
        meta["error"] = event.error
    meta["rows"] = [_of_row(row, columns) for row in event.rows]
    return meta


def _of_row(row: RecordedRow, columns: _Columns) -> dict[str, Any]:
    meta: dict[str, Any] = {"offset": row.offset} if row.offset else {}
    if row.edits is None:
        meta["edits"] = None
    elif row.edits:
        meta["edits"] = [
            [int(kind), columns.add(ids, "<i4"), 0 if values is None else columns.add(values, "<f4")]
            for kind, ids, values in row.edits
        ]
    for name, top in (("before", row.before), ("after", row.after)):
        if top is not None:
            count = columns.add(top.ids, "<i4")
            columns.add(top.logits, "<f4")
            columns.add(np.array([top.log_sum]), "<f8")
            meta[name] = count
    return meta


def _event(kind: type[Any], meta: Mapping[str, Any], columns: _Reader) -> Event:
    if kind is RequestBegan:
        return RequestBegan(
            meta["key"],
            meta["request_id"],
            columns.take(meta["prompt"], "<i4"),
            columns.take(meta["output"], "<i4"),
            tuple(map(_processor, meta["processors"])),
            meta["sampling_params"],
            meta["on_error"],
        )
    if kind is RequestStepped:
        return RequestStepped(
            meta["key"],
            meta["index"],
            meta["base"],
            columns.take(meta["new"], "<i4"),
            columns.take(meta.get("drafts", 0), "<i4"),
            tuple(_row(row, columns) for row in meta["rows"]),
            greedy=meta.get("greedy", False),
            finished=meta.get("finished", True),
            error=meta.get("error", ""),
        )
    fields = _known(kind, meta)
    if kind is SessionOpened:
        fields["eos_token_ids"] = tuple(fields.get("eos_token_ids", ()))
    event: Event = kind(**fields)
    return event


def _processor(meta: Mapping[str, Any]) -> RecordedProcessor:
    processor = RecordedProcessor(**_known(RecordedProcessor, meta))
    check_types(processor)
    return processor


def _row(meta: Mapping[str, Any], columns: _Reader) -> RecordedRow:
    recorded = meta.get("edits", ())
    edits = None if recorded is None else tuple(_edit(edit, columns) for edit in recorded)
    before, after = (_top(meta[name], columns) if name in meta else None for name in ("before", "after"))
    row = RecordedRow(meta.get("offset", 0), edits, before, after)
    check_types(row)
    return row


def _edit(counts: list[int], columns: _Reader) -> Edit:
    kind, ids, values = counts
    if values not in (0, ids):
        raise InvalidArgument(f"an edit has {ids} ids and {values} values")
    return EditKind(kind), columns.take(ids, "<i4"), columns.take(values, "<f4") if values else None


def _top(count: int, columns: _Reader) -> TopLogits:
    ids, logits = columns.take(count, "<i4"), columns.take(count, "<f4")
    return TopLogits(ids, logits, float(columns.take(1, "<f8")[0]))


def _known(kind: type[Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows; later ones may add more."""
    return {name: value for name, value in meta.items() if name in kind.__dataclass_fields__}
