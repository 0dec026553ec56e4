"""Columns of frames: reads and checks those of a step, writes those of its reply."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, InvalidTokenId, LimitExceeded, to_proto
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.errors import LogitportError
    from logitport_proto import processing_pb2
    from logitport_server.session.outcome import StepOutcome


@dataclass(frozen=True, slots=True)
class StepLayout:
    """What a Step frame says of the batch. An engine says the same in many steps on end.

    Attributes:
        slots: of the requests that take part.
        generations: of the same requests.
        draft_counts: how many draft tokens each of them has.
        rows: for each row of the logits the place of its request in `slots`, and its draft offset.
    """

    slots: tuple[int, ...]
    generations: tuple[int, ...]
    draft_counts: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]

    @staticmethod
    def columns(frame: processing_pb2.Step) -> tuple[bytes, ...]:
        """All that `read` reads: frames in which these are equal have the same layout."""
        return (frame.slots, frame.generations, frame.draft_counts, frame.row_requests, frame.row_draft_offsets)

    @classmethod
    def read(cls, frame: processing_pb2.Step, max_draft_tokens: int) -> StepLayout:
        """Check each column, its length and what must hold between columns. Raises InvalidArgument as `StepColumns`."""
        slots = unpack_int32(frame.slots, "Step.slots")
        n = len(slots)
        if len(set(slots)) != n:
            raise InvalidArgument("Step.slots: a slot stands twice; a request takes part in a step once")
        generations = unpack_int32(frame.generations, "Step.generations", n)
        draft_counts = _counts(frame.draft_counts, "Step.draft_counts", n)
        deepest = max(draft_counts, default=0)
        if deepest > max_draft_tokens:
            raise InvalidArgument(
                f"Step.draft_counts: {deepest} draft tokens; the session was opened for {max_draft_tokens} at most; "
                f"open it with max_draft_tokens={deepest} or more, as Client.session(max_draft_tokens={deepest}) does"
            )
        return cls(slots, generations, draft_counts, _rows(frame, draft_counts))


@dataclass(frozen=True, slots=True)
class StepColumns:
    """What is new in a step, request by request.

    Attributes:
        base_lengths: length of each history before the new ids.
        history_crcs: checksum of each history before the new ids.
        new_token_ids: what joined each history.
        draft_token_ids: what each request has been drafted.
        invalid: why a request cannot take part: it was told of an id outside the vocabulary, or of too many; None where
            it can.
    """

    base_lengths: Sequence[int]
    history_crcs: Sequence[int]
    new_token_ids: Sequence[Sequence[int]]
    draft_token_ids: Sequence[Sequence[int]]
    invalid: Sequence[LogitportError | None]

    @classmethod
    def read(cls, frame: processing_pb2.Step, layout: StepLayout, vocab_size: int, max_tokens: int) -> StepColumns:
        """Check every column and its length, and that no history gets longer than `max_tokens`.

        Raises:
            InvalidArgument: a column has the wrong length, or holds what it may not; names the column.
        """
        n = len(layout.slots)
        invalid: list[LogitportError | None] = [None] * n
        new_counts = _counts(frame.new_token_counts, "Step.new_token_counts", n)
        base_lengths = unpack_int32(frame.base_lengths, "Step.base_lengths", n)
        _check_lengths((base_lengths, new_counts, layout.draft_counts), max_tokens, invalid)
        return cls(
            base_lengths,
            _column(frame.history_crcs, "Step.history_crcs", "I", n),
            _split(new_counts, frame.new_token_ids, "new", vocab_size, invalid),
            _split(layout.draft_counts, frame.draft_token_ids, "draft", vocab_size, invalid),
            invalid,
        )


def _rows(frame: processing_pb2.Step, draft_counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    n = len(draft_counts)
    if not frame.row_requests:
        if frame.row_draft_offsets:
            raise InvalidArgument("Step.row_draft_offsets: needs row_requests beside it")
        return tuple((place, 0) for place in range(n))
    places = unpack_int32(frame.row_requests, "Step.row_requests")
    if not frame.row_draft_offsets:
        offsets = (0,) * len(places)
    else:
        offsets = unpack_int32(frame.row_draft_offsets, "Step.row_draft_offsets", len(places))
    for row, (place, offset) in enumerate(zip(places, offsets, strict=True)):
        if not 0 <= place < n:
            raise InvalidArgument(f"Step.row_requests[{row}] is {place}; {n} requests take part")
        if not 0 <= offset <= draft_counts[place]:
            raise InvalidArgument(
                f"Step.row_draft_offsets[{row}] is {offset}; its request has {draft_counts[place]} draft tokens"
            )
    return tuple(zip(places, offsets, strict=True))


def _counts(column: bytes, name: str, n: int) -> tuple[int, ...]:
    """How many ids each request has; none if there is no column."""
    counts = unpack_int32(column, name, n) if column else (0,) * n
    if counts and min(counts) < 0:
        raise InvalidArgument(f"{name}: a count is negative")
    return counts


def _check_lengths(parts: tuple[Sequence[int], ...], max_tokens: int, invalid: list[LogitportError | None]) -> None:
    """Each history with its new ids and drafts; those that are too long go to `invalid`."""
    if sum(max(part, default=0) for part in parts) <= max_tokens:  # the usual step
        return
    for place, lengths in enumerate(zip(*parts, strict=True)):
        if sum(lengths) > max_tokens:
            invalid[place] = too_many_tokens(sum(lengths), max_tokens)


def too_many_tokens(length: int, max_tokens: int) -> LimitExceeded:
    """Why a request is refused whose history has grown to this length."""
    return LimitExceeded(
        f"{length} token ids in one request, drafts among them; the server takes {max_tokens}: end the request, or "
        "raise --max-tokens-per-request"
    )


def _split(
    counts: Sequence[int], ids_column: bytes, of: str, vocab_size: int, invalid: list[LogitportError | None]
) -> Sequence[Sequence[int]]:
    """The ids of each request, from how many there are of each and all of them; those that are none go to `invalid`."""
    if not ids_column and not any(counts):  # the usual step has no drafts
        return [()] * len(counts)
    ids = unpack_int32(ids_column, f"Step.{of}_token_ids")
    if len(ids) != sum(counts):
        raise InvalidArgument(f"Step.{of}_token_ids: the counts add up to {sum(counts)}, but {len(ids)} ids came")
    if counts.count(1) == len(counts):  # the usual step
        per_request: list[tuple[int, ...]] = list(zip(ids))
    else:
        per_request = [ids[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        for place, token_ids in enumerate(per_request):
            if wrong := [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]:
                invalid[place] = InvalidTokenId(
                    f"Step.{of}_token_ids: token id {wrong[0]}; ids must lie in [0, {vocab_size})"
                )
    return per_request


def pack_int32(values: Iterable[int]) -> bytes:
    """A column of int32."""
    listed = list(values)
    return struct.pack(f"<{len(listed)}i", *listed)


def unpack_int32(column: bytes, name: str, length: int | None = None) -> tuple[int, ...]:
    """int32[length] from a column; any length if none is given. Raises InvalidArgument, which names the column."""
    return _column(column, name, "i", length)


def _column(column: bytes, name: str, code: str, length: int | None) -> tuple[int, ...]:
    if len(column) % 4 or (length is not None and len(column) != 4 * length):
        wanted = "a whole number of elements" if length is None else f"{length} elements"
        raise InvalidArgument(f"{name}: {len(column)} bytes; {wanted} of 4 bytes each are wanted")
    # For columns as short as these, struct is several times faster than numpy.
    return struct.unpack(f"<{len(column) // 4}{code}", column)


def write_outcome(
    reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse,
    outcome: StepOutcome,
    all_denied_rows: Sequence[int],
) -> None:
    """Who failed, what was applied, which rows have no id left."""
    if outcome.failures:
        reply.failures.extend(
            common_pb2.Failure(slot=slot, error=to_proto(failed.error), skipped=failed.skipped)
            for slot, failed in outcome.failures.items()
        )
    if applied := outcome.applied:
        names = outcome.names
        for key, rows in applied.items():
            reply.applied.add(processor=key, rows=rows, display_name=names[key] if names[key] != key else "")
    if all_denied_rows:
        reply.all_denied_rows = pack_int32(all_denied_rows)
