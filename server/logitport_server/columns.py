"""The columns of a Step frame, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport.errors import InvalidArgument, InvalidTokenId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport_proto import processing_pb2


class RequestStep(NamedTuple):
    """What a Step says of one request; the fields are named as the columns."""

    slot: int
    generation: int
    base_length: int
    history_crc: int
    new_token_ids: list[int]
    draft_token_ids: list[int]


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
        if len(np.unique(slots)) != n:
            raise InvalidArgument("Step.slots: a slot stands twice; a request takes part in a step once")
        generations = int32_column(frame.generations, "Step.generations", n)
        base_lengths = int32_column(frame.base_lengths, "Step.base_lengths", n)
        crcs = _column(frame.history_crcs, "Step.history_crcs", "<u4", n)
        new_token_ids = _split(frame.new_token_counts, frame.new_token_ids, "new_token", n, vocab_size)
        drafts = _split(frame.draft_counts, frame.draft_token_ids, "draft", n, vocab_size)
        deepest = max(map(len, drafts), default=0)
        if deepest > max_draft_tokens:
            raise InvalidArgument(
                f"Step.draft_counts: {deepest} draft tokens; the session was opened for {max_draft_tokens} at most"
            )
        columns = (slots, generations, base_lengths, crcs)
        requests = list(
            map(RequestStep._make, zip(*(column.tolist() for column in columns), new_token_ids, drafts, strict=True))
        )
        return cls(requests, _rows(frame, drafts))


def _rows(frame: processing_pb2.Step, drafts: list[list[int]]) -> list[tuple[int, int]]:
    if not frame.row_requests:
        if frame.row_draft_offsets:
            raise InvalidArgument("Step.row_draft_offsets: needs row_requests beside it")
        return [(place, 0) for place in range(len(drafts))]
    places = int32_column(frame.row_requests, "Step.row_requests").tolist()
    if not frame.row_draft_offsets:
        offsets = [0] * len(places)
    else:
        offsets = int32_column(frame.row_draft_offsets, "Step.row_draft_offsets", len(places)).tolist()
    for row, (place, offset) in enumerate(zip(places, offsets, strict=True)):
        if not 0 <= place < len(drafts):
            raise InvalidArgument(f"Step.row_requests[{row}] is {place}; {len(drafts)} requests take part")
        if not 0 <= offset <= len(drafts[place]):
            raise InvalidArgument(
                f"Step.row_draft_offsets[{row}] is {offset}; its request has {len(drafts[place])} draft tokens"
            )
    return list(zip(places, offsets, strict=True))


def _split(counts_column: bytes, ids_column: bytes, name: str, n: int, vocab_size: int) -> list[list[int]]:
    """The ids of each request, from how many there are of each and all of them."""
    if not counts_column and not ids_column:
        return [[] for _ in range(n)]
    counts = int32_column(counts_column, f"Step.{name}_counts", n)
    ids = int32_column(ids_column, f"Step.{name} ids")
    if counts.size and counts.min() < 0:
        raise InvalidArgument(f"Step.{name}_counts: a count is negative")
    ends = np.cumsum(counts, dtype=np.int64)
    if len(ids) != (ends[-1] if n else 0):
        raise InvalidArgument(f"Step.{name}_counts: they add up to {ends[-1] if n else 0}, but {len(ids)} ids came")
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise InvalidTokenId(f"Step: token id {wrong} among the {name} ids; ids must lie in [0, {vocab_size})")
    every = ids.tolist()
    if ends[-1] == n and counts.min() == 1:  # the usual step
        return [[token_id] for token_id in every]
    return [every[end - count : end] for count, end in zip(counts.tolist(), ends.tolist(), strict=True)]


def int32_column(column: bytes, name: str, length: int | None = None) -> NDArray[np.int32]:
    """int32[length] from a column; any length if none is given. Raises InvalidArgument, which names the column."""
    return _column(column, name, "<i4", length)


def _column(column: bytes, name: str, dtype: str, length: int | None) -> NDArray[np.int32]:
    if len(column) % 4 or (length is not None and len(column) != 4 * length):
        wanted = "a whole number of elements" if length is None else f"{length} elements"
        raise InvalidArgument(f"{name}: {len(column)} bytes; {wanted} of 4 bytes each are wanted")
    return np.frombuffer(column, dtype)
