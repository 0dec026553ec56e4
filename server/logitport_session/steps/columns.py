"""Columns of frames: unpacks and checks a step's."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from logitport.core.drafts import DraftParents, wrong_parent
from logitport.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.errors import LogitportError
    from logitport_proto import processing_pb2


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The part of a Step frame that describes the batch. It is often the same in many consecutive steps.

    Attributes:
        slots: slots of the requests in the step.
        generations: generations of the same requests.
        draft_counts: number of draft tokens of each request.
        draft_parents: the parents of the draft tokens of each request, as `Drafts.parents`.
        draft_depths: the most draft tokens that a row of each request can see.
        rows: for each row of the logits, the index of its request in `slots`, and its draft offset.
    """

    slots: tuple[int, ...]
    generations: tuple[int, ...]
    draft_counts: tuple[int, ...]
    draft_parents: tuple[DraftParents, ...]
    draft_depths: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]

    @staticmethod
    def columns(frame: processing_pb2.Step) -> tuple[bytes, ...]:
        """The columns that `read` reads. Frames with equal ones have the same layout."""
        rows = frame.row_requests, frame.row_draft_offsets
        return (frame.slots, frame.generations, frame.draft_counts, frame.draft_parents, *rows)

    @classmethod
    def read(cls, frame: processing_pb2.Step, max_draft_tokens: int) -> StepLayout:
        """Unpack the columns; check each of them, and that they are consistent. Raises InvalidArgument."""
        slots = unpack_int32(frame.slots, "Step.slots")
        n = len(slots)
        if len(set(slots)) != n:
            raise InvalidArgument("Step.slots: a slot is listed twice; list each request once per step")
        generations = unpack_int32(frame.generations, "Step.generations", n)
        draft_counts = _counts(frame.draft_counts, "Step.draft_counts", n)
        most = max(draft_counts, default=0)
        if most > max_draft_tokens:
            raise InvalidArgument(
                f"Step.draft_counts: {most} draft tokens; the session was opened with {max_draft_tokens} at most; "
                f"open it with max_draft_tokens={most} or more, as Client.session(max_draft_tokens={most}) does"
            )
        parents = _parents(frame, draft_counts)
        depths = tuple(tree.depth() if tree else count for tree, count in zip(parents, draft_counts, strict=True))
        return cls(slots, generations, draft_counts, parents, depths, _rows(frame, draft_counts))


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The part of a Step frame that changes with every step, for each request of the layout.

    Attributes:
        base_lengths: length of each history before the new ids.
        history_crcs: checksum of each history before the new ids.
        new_token_ids: ids to append to each history.
        draft_token_ids: draft tokens of each request.
        invalid: the error of each request that has an id outside the vocabulary, or too many ids; None for the others.
    """

    base_lengths: Sequence[int]
    history_crcs: Sequence[int]
    new_token_ids: Sequence[Sequence[int]]
    draft_token_ids: Sequence[Sequence[int]]
    invalid: Sequence[LogitportError | None]

    @classmethod
    def read(cls, frame: processing_pb2.Step, layout: StepLayout, vocab_size: int, max_tokens: int) -> StepColumns:
        """Unpack the columns and check their lengths and values; `max_tokens` limits the length of a history.

        Raises:
            InvalidArgument: a column has a wrong length or an invalid value; the message names the column.
        """
        n = len(layout.slots)
        invalid: list[LogitportError | None] = [None] * n
        new_counts = _counts(frame.new_token_counts, "Step.new_token_counts", n)
        base_lengths = _column(frame.base_lengths, "Step.base_lengths", "i", n)
        _check_lengths((base_lengths, new_counts, layout.draft_depths), max_tokens, invalid)
        return cls(
            base_lengths,
            _column(frame.history_crcs, "Step.history_crcs", "I", n),
            _split(new_counts, frame.new_token_ids, "new", vocab_size, invalid),
            _split(layout.draft_counts, frame.draft_token_ids, "draft", vocab_size, invalid),
            invalid,
        )


def _parents(frame: processing_pb2.Step, draft_counts: Sequence[int]) -> tuple[DraftParents, ...]:
    """The parents of the draft tokens of each request; none for all if the column is empty."""
    if not frame.draft_parents:
        return (DraftParents(),) * len(draft_counts)
    column = unpack_int32(frame.draft_parents, "Step.draft_parents", sum(draft_counts))
    ends = accumulate(draft_counts)
    per_request = tuple(DraftParents(column[end - count : end]) for count, end in zip(draft_counts, ends, strict=True))
    for index, parents in enumerate(per_request):
        if (wrong := wrong_parent(parents)) is not None:
            at = sum(draft_counts[:index]) + wrong
            raise InvalidArgument(
                f"Step.draft_parents[{at}] is {parents[wrong]}, of draft {wrong} of request {index} of the step; send "
                f"the index of an earlier draft of the same request, in [0, {wrong}), or -1 for a draft that follows "
                "the history"
            )
    return per_request


def _rows(frame: processing_pb2.Step, draft_counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    n = len(draft_counts)
    if not frame.row_requests:
        if frame.row_draft_offsets:
            raise InvalidArgument("Step.row_draft_offsets: sent without row_requests; send both")
        return tuple((index, 0) for index in range(n))
    requests = unpack_int32(frame.row_requests, "Step.row_requests")
    if not frame.row_draft_offsets:
        offsets = (0,) * len(requests)
    else:
        offsets = unpack_int32(frame.row_draft_offsets, "Step.row_draft_offsets", len(requests))
    for row, (index, offset) in enumerate(zip(requests, offsets, strict=True)):
        if not 0 <= index < n:
            raise InvalidArgument(f"Step.row_requests[{row}] is {index}; the step has {n} requests")
        if not 0 <= offset <= draft_counts[index]:
            raise InvalidArgument(
                f"Step.row_draft_offsets[{row}] is {offset}; its request has {draft_counts[index]} draft tokens"
            )
    return tuple(zip(requests, offsets, strict=True))


def _counts(column: bytes, name: str, n: int) -> tuple[int, ...]:
    """The number of ids of each request; 0 for all if the column is empty."""
    counts = _column(column, name, "i", n) if column else (0,) * n
    if counts and min(counts) < 0:
        raise InvalidArgument(f"{name}: a count is negative")
    return counts


def _check_lengths(parts: tuple[Sequence[int], ...], max_tokens: int, invalid: list[LogitportError | None]) -> None:
    """Check each history's length, with its new ids and drafts; the errors go to `invalid`."""
    longest = 0
    for part in parts:
        longest += max(part, default=0)
    if longest <= max_tokens:  # fast path for the usual step
        return
    for index, lengths in enumerate(zip(*parts, strict=True)):
        if sum(lengths) > max_tokens:
            invalid[index] = too_many_tokens(sum(lengths), max_tokens)


def too_many_tokens(length: int, max_tokens: int) -> LimitExceeded:
    """The error for a request with a history that is, drafts included, longer than the limit."""
    return LimitExceeded(
        f"{length} token ids in one request, drafts included; the server accepts {max_tokens}: end the request, or "
        "raise --max-tokens-per-request"
    )


def _split(
    counts: Sequence[int], ids_column: bytes, kind: str, vocab_size: int, invalid: list[LogitportError | None]
) -> Sequence[Sequence[int]]:
    """Split a column of ids by the requests' counts. An id outside the vocabulary sets the request's `invalid`."""
    if not ids_column and not any(counts):  # fast path: the usual step has no drafts
        return [()] * len(counts)
    ids = _column(ids_column, f"Step.{kind}_token_ids", "i", None)
    if len(ids) != sum(counts):
        raise InvalidArgument(f"Step.{kind}_token_ids: {len(ids)} ids, but the counts add up to {sum(counts)}")
    if counts.count(1) == len(counts):  # fast path for the usual step
        per_request: list[tuple[int, ...]] = list(zip(ids))
    else:
        per_request = [ids[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        for index, token_ids in enumerate(per_request):
            if wrong := [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]:
                invalid[index] = InvalidArgument(
                    f"Step.{kind}_token_ids: token id {wrong[0]}; ids must lie in [0, {vocab_size})"
                )
    return per_request


def pack_int32(values: Iterable[int]) -> bytes:
    """Pack integers as a little-endian int32 column."""
    listed = list(values)
    return struct.pack(f"<{len(listed)}i", *listed)


def unpack_int32(column: bytes, name: str, length: int | None = None) -> tuple[int, ...]:
    """Unpack a little-endian int32 column of this length, or of any. Raises InvalidArgument, which names the column."""
    return _column(column, name, "i", length)


def _column(column: bytes, name: str, code: str, length: int | None) -> tuple[int, ...]:
    if len(column) % 4 or (length is not None and len(column) != 4 * length):
        expected = "a whole number of elements" if length is None else f"{length} elements"
        raise InvalidArgument(f"{name}: {len(column)} bytes; send {expected} of 4 bytes each")
    # struct, not numpy: for columns as short as these, numpy is several times slower.
    return struct.unpack(f"<{len(column) // 4}{code}", column)
