"""The events of a worker's reply to `Edit`, in a column that follows those of the edits. Absent without events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import orjson

from logitport.core.row_events import MAX_ROW_EVENTS, MAX_VALUES_BYTES, RowEvent, make_event

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of the JSON of an event besides its values.
_OTHER_BYTES = 128
_decoder = msgspec.json.Decoder(list[tuple[int, str, dict[str, int | str], int]])


def encode_events(events: Sequence[tuple[int, RowEvent]]) -> list[bytes]:
    """Return no column, or one: a JSON list of row, name, values and number of events that were left out."""
    if not events:
        return []
    return [orjson.dumps([[row, name, orjson.Fragment(values or b"{}"), left] for row, (name, values, left) in events])]


def decode_events(columns: Sequence[memoryview], num_rows: int) -> list[tuple[int, RowEvent]]:
    """Read the column of an untrusted worker, if there is one.

    Raises:
        ValueError: it is larger than the limits of a call of `num_rows` rows allow, or no such list.
        InvalidArgument: an event is invalid.
    """
    if not columns:
        return []
    (column,) = columns
    most = num_rows * (MAX_ROW_EVENTS + 1)
    if len(column) > most * (MAX_VALUES_BYTES + _OTHER_BYTES):
        raise ValueError(f"events of {len(column)} bytes for {num_rows} rows")
    try:
        decoded = _decoder.decode(column)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"invalid events: {str(error)[:160]}") from error
    events: list[tuple[int, RowEvent]] = []
    for row, name, values, left_out in decoded:
        least = events[-1][0] if events else 0
        if not (least <= row < num_rows and 0 <= left_out < 2**31) or len(events) == most:
            raise ValueError(f"an event of row {row}, or {most} events before it, in a call of {num_rows} rows")
        events.append((row, make_event(name, values) if name else RowEvent("", b"", left_out)))
    return events
