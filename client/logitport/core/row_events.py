"""Events: what processors report of a request at one row, within limits of number and size."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from logitport_proto import common_pb2

# Kept events: of a processor at one row, of a step, and of a request. Further ones are only counted.
MAX_ROW_EVENTS = 4
MAX_STEP_EVENTS = 1024
MAX_REQUEST_EVENTS = 64
MAX_VALUES = 4
MAX_TEXT_LENGTH = 64
# Bytes of the values as JSON: an escaped character has six.
MAX_VALUES_BYTES = MAX_VALUES * 6 * (2 * MAX_TEXT_LENGTH)

# Events of built-ins. Names of other processors cannot take their place where the number of names is limited.
BUILTIN_EVENTS = ("budget_hit", "grammar_complete", "ids_denied", "loop_found")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_MAX_INTEGER = (1 << 53) - 1  # larger ones are not exact in the JSON of every language
_MAX_COUNT = (1 << 31) - 1  # of the field `left_out`; a worker may state any number below


class RowEvent(NamedTuple):
    """An event of one row.

    Attributes:
        name: what happened; "" for an entry that only counts, and for `SKIPPED`.
        values: details, a JSON object.
        left_out: number of further events of the row that were left out.
    """

    name: str
    values: bytes = b""
    left_out: int = 0


# Of a row that stayed unchanged, because a processor failed.
SKIPPED = RowEvent("")


class RequestEvent(NamedTuple):
    """An event of a request, as the message `Event`.

    Attributes:
        slot: of the request.
        processor: key of the processor: a built-in's name, or a digest.
        position: index in the output of the id that the row samples.
        event: the event.
        draft_offset: of the row, as `Event.draft_offset`.
    """

    slot: int
    processor: str
    position: int
    event: RowEvent
    draft_offset: int = 0

    def write_to(self, message: common_pb2.Event) -> None:
        """Set all fields of a message."""
        message.slot, message.processor, message.position = self.slot, self.processor, self.position
        message.name, message.values, message.left_out = self.event
        message.draft_offset = self.draft_offset


def make_event(name: object, values: Mapping[str, Any]) -> RowEvent:
    """Make an event of these details.

    Raises:
        InvalidArgument: the name, the number of values, or one of them is not as in `RowEdits.event`.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidArgument(
            f"event: the name is {name!r:.80}; pass 1 to 32 lowercase letters, digits and underscores, with a letter "
            "first"
        )
    if len(values) > MAX_VALUES:
        raise InvalidArgument(f"event {name!r}: {len(values)} values; pass at most {MAX_VALUES}")
    for key, value in values.items():
        if not _NAME.fullmatch(key):
            raise InvalidArgument(f"event {name!r}: the name of a value is {key!r:.80}; name it as an event")
        is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INTEGER
        if not is_integer and not (isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH and _is_text(value)):
            raise InvalidArgument(
                f"event {name!r}: {key} is {value!r:.80}; pass an integer of 53 bits, or text of at most "
                f"{MAX_TEXT_LENGTH} characters"
            )
    return RowEvent(name, orjson.dumps(dict(values)) if values else b"")


def read_values(name: str, values: bytes) -> dict[str, int | str]:
    """Return the details of an event that another process has sent. Raises InvalidArgument as `make_event`."""
    try:
        read = orjson.loads(values) if 0 < len(values) <= MAX_VALUES_BYTES else None if values else {}
    except orjson.JSONDecodeError:
        read = None
    if not isinstance(read, dict):
        raise InvalidArgument(f"event {name!r:.80}: the values are no JSON object of at most {MAX_VALUES_BYTES} bytes")
    make_event(name, read)
    return read


def bounded(events: Iterable[RequestEvent]) -> Iterator[RequestEvent]:
    """Yield the events of a step within its limit, and for each row with further ones an entry that counts.

    If there are more events than the limit, each row keeps its equal share: one request cannot hide those of others.
    """
    rows = [list(row) for _, row in groupby(events, _row_of)]
    named = [sum(bool(one.event.name) for one in row) for row in rows]
    share = MAX_STEP_EVENTS if sum(named) <= MAX_STEP_EVENTS else max(1, MAX_STEP_EVENTS // sum(map(bool, named)))
    free = MAX_STEP_EVENTS
    for row in rows:
        kept = [one for one in row if one.event.name][: min(share, free)]
        free -= len(kept)
        yield from kept
        count = sum(one.event.left_out + bool(one.event.name) for one in row) - len(kept)
        if count:
            counted = RowEvent("", b"", min(count, _MAX_COUNT))
            yield RequestEvent(row[0].slot, "", row[0].position, counted, row[0].draft_offset)


def _row_of(event: RequestEvent) -> tuple[int, int, int]:
    return event.slot, event.position, event.draft_offset


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a half of a surrogate pair
        return False
    return True
