"""The columns of a Step frame, checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import InvalidArgument, InvalidTokenId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_proto import processing_pb2


class RequestStep(NamedTuple):
    """What a Step says of one request; the fields are named as the columns."""

    slot: int
    generation: int
    base_length: int
    history_crc: int
    new_token_ids: Sequence[int]
    draft_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepColumns:
    """A Step frame, row by row.

    Attributes:
        requests: the requests that take part.
        rows: for each row of the logits the place of its request in `requests`, and its draft offset.
    """

    requests: list[RequestStep]
    rows: list[tuple[int, int]]

    @classmethod
    def read(cls, frame: processing_pb2.Step, vocab_size: int, max_draft_tokens: int) -> StepColumns:
        """Check every column, its length and what must hold between columns.

        Raises:
            InvalidArgument: a column has the wrong length, or holds what it may not; names the column.
            InvalidTokenId: an id is not in [0, vocab_size).
        """
        slots = int32_column(frame.slots, "Step.slots")
        n = len(slots)
        if len(set(slots)) != n:
            raise InvalidArgument("Step.slots: a slot stands twice; a request takes part in a step once")
        generations = int32_column(frame.generations, "Step.generations", n)
        base_lengths = int32_column(frame.base_lengths, "Step.base_lengths", n)
        crcs = _column(frame.history_crcs, "Step.history_crcs", "I", n)
        new_token_ids = _split(
            frame.new_token_counts, frame.new_token_ids, ("Step.new_token_counts", "Step.new_token_ids"), n, vocab_size
        )
        drafts = _split(
            frame.draft_counts, frame.draft_token_ids, ("Step.draft_counts", "Step.draft_token_ids"), n, vocab_size
        )
        deepest = max(map(len, drafts), default=0)
        if deepest > max_draft_tokens:
            raise InvalidArgument(
                f"Step.draft_counts: {deepest} draft tokens; the session was opened for {max_draft_tokens} at most"
            )
        columns = zip(slots, generations, base_lengths, crcs, new_token_ids, drafts, strict=True)
        return cls(list(map(RequestStep._make, columns)), _rows(frame, drafts))


def _rows(frame: processing_pb2.Step, drafts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    if not frame.row_requests:
        if frame.row_draft_offsets:
            raise InvalidArgument("Step.row_draft_offsets: needs row_requests beside it")
        return [(place, 0) for place in range(len(drafts))]
    places = int32_column(frame.row_requests, "Step.row_requests")
    if not frame.row_draft_offsets:
        offsets = (0,) * len(places)
    else:
        offsets = int32_column(frame.row_draft_offsets, "Step.row_draft_offsets", len(places))
    for row, (place, offset) in enumerate(zip(places, offsets, strict=True)):
        if not 0 <= place < len(drafts):
            raise InvalidArgument(f"Step.row_requests[{row}] is {place}; {len(drafts)} requests take part")
        if not 0 <= offset <= len(drafts[place]):
            raise InvalidArgument(
                f"Step.row_draft_offsets[{row}] is {offset}; its request has {len(drafts[place])} draft tokens"
            )
    return list(zip(places, offsets, strict=True))


def _split(
    counts_column: bytes, ids_column: bytes, names: tuple[str, str], n: int, vocab_size: int
) -> Sequence[Sequence[int]]:
    """The ids of each request, from how many there are of each and all of them."""
    if not counts_column and not ids_column:
        return ((),) * n
    counts = int32_column(counts_column, names[0], n)
    ids = int32_column(ids_column, names[1])
    if counts and min(counts) < 0:
        raise InvalidArgument(f"{names[0]}: a count is negative")
    if len(ids) != sum(counts):
        raise InvalidArgument(f"{names[0]}: they add up to {sum(counts)}, but {len(ids)} ids came")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise InvalidTokenId(f"{names[1]}: token id {wrong}; ids must lie in [0, {vocab_size})")
    return [ids[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def int32_column(column: bytes, name: str, length: int | None = None) -> tuple[int, ...]:
    """int32[length] from a column; any length if none is given. Raises InvalidArgument, which names the column."""
    return _column(column, name, "i", length)


def _column(column: bytes, name: str, code: str, length: int | None) -> tuple[int, ...]:
    if len(column) % 4 or (length is not None and len(column) != 4 * length):
        wanted = "a whole number of elements" if length is None else f"{length} elements"
        raise InvalidArgument(f"{name}: {len(column)} bytes; {wanted} of 4 bytes each are wanted")
    # For columns as short as these, struct is several times faster than numpy.
    return struct.unpack(f"<{len(column) // 4}{code}", column)
