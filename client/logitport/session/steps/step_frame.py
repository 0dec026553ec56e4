"""The frame of a step: new tokens of each request, and the rows of the logits."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import index
from typing import TYPE_CHECKING

from logitport.core.drafts import Drafts, wrong_parent
from logitport.core.history import listed_ids
from logitport.errors import InvalidArgument, NotFound
from logitport.session.handle import Handle
from logitport.shipping.calls import pack_int32
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.core.history import TokenIds
    from logitport.session.handle import RowLike

_LISTS = frozenset((list, tuple))


def listed_by_handle(token_ids: Mapping[Handle, TokenIds], name: str) -> Mapping[Handle, Sequence[int]]:
    """Convert tensors and arrays of ids to lists. Raises InvalidArgument for another dtype or shape."""
    if _LISTS.issuperset(map(type, token_ids.values())):  # the usual step
        return token_ids  # type: ignore[return-value]
    return {handle: listed_ids(ids, f"{name} of {handle}") for handle, ids in token_ids.items()}


def draft_trees(
    drafts: Mapping[Handle, TokenIds] | None, parents: Mapping[Handle, TokenIds] | None, *, check: bool = True
) -> dict[Handle, Drafts]:
    """Copy the draft tokens of each request, and their parents, because the caller may change its own.

    Raises:
        InvalidArgument: the parents of a request are not one for each draft, or one of them does not precede its child.
    """
    ids = listed_by_handle(drafts, "drafts") if drafts else {}
    trees = listed_by_handle(parents, "draft_parents") if parents else {}
    if check:
        for handle, listed in trees.items():
            _check_parents(handle, listed, len(ids.get(handle, ())))
        trees = {handle: [*map(index, listed)] for handle, listed in trees.items()}
    return {handle: Drafts(ids.get(handle, ()), trees.get(handle, ())) for handle in dict.fromkeys((*ids, *trees))}


def _check_parents(handle: Handle, parents: Sequence[int], count: int) -> None:
    if len(parents) != count:
        raise InvalidArgument(
            f"draft_parents of {handle} has {len(parents)} parents, but the request has {count} draft tokens; pass "
            "one parent for each draft, or no entry for a chain"
        )
    if (wrong := wrong_parent(parents)) is not None:
        raise InvalidArgument(
            f"draft_parents[{wrong}] of {handle} is {parents[wrong]}; pass the index of an earlier draft of the "
            f"request, in [0, {wrong}), or -1 for a draft that follows the history"
        )


def place_rows(
    new_token_ids: Mapping[Handle, Sequence[int]],
    drafts: Mapping[Handle, Sequence[int]],
    rows: Sequence[RowLike] | None,
) -> list[tuple[Handle, int]]:
    """Map each row of the logits to (handle, draft offset).

    By default each handle has, in order, one row and one more for each of its draft tokens.

    Raises:
        NotFound: a row, or drafts, of a handle that is not in the step.
        InvalidArgument: a draft offset beyond the drafts, or requests without any row.
    """
    for handle in drafts:
        if handle not in new_token_ids:
            raise NotFound(f"drafts belong to {handle}, which is not in the step; give it new ids, or []")
    if rows is None:
        return [(handle, offset) for handle in new_token_ids for offset in range(1 + len(drafts.get(handle, ())))]
    placed = [row if isinstance(row, tuple) else (row, 0) for row in rows]
    if new_token_ids and not placed:
        raise InvalidArgument(
            "rows is empty: leave out requests without a row, and pass their new ids in the step of their next row"
        )
    for handle, offset in placed:
        if handle not in new_token_ids:
            raise NotFound(f"a row belongs to {handle}, which is not in the step; give it new ids, or []")
        if not 0 <= offset <= len(drafts.get(handle, ())):
            raise InvalidArgument(
                f"a row of {handle} has draft offset {offset}, but the request has {len(drafts.get(handle, ()))} draft "
                "tokens"
            )
    return placed


def step_frame(
    new_token_ids: Mapping[Handle, Sequence[int]],
    drafts: Mapping[Handle, Drafts],
    rows: Sequence[tuple[Handle, int]],
    vocab_size: int,
) -> processing_pb2.Step:
    """Make the frame for a step. The length and checksum of each history are those before the new ids.

    Raises:
        InvalidArgument: an id is not an integer in [0, vocab_size).
    """
    handles = list(new_token_ids)
    frame = processing_pb2.Step(
        slots=pack_int32([handle.slot for handle in handles]),
        generations=pack_int32([handle.generation for handle in handles]),
        base_lengths=pack_int32([len(handle.history) for handle in handles]),
        history_crcs=struct.pack(f"<{len(handles)}I", *[handle.history.crc() for handle in handles]),
        new_token_counts=pack_int32([len(ids) for ids in new_token_ids.values()]),
        new_token_ids=_token_column(new_token_ids.values(), vocab_size),
    )
    if drafts:
        frame.draft_counts = pack_int32([len(drafts.get(handle, ())) for handle in handles])
        frame.draft_token_ids = _token_column([drafts.get(handle, ()) for handle in handles], vocab_size)
        if any(each.parents for each in drafts.values()):
            trees = [drafts.get(handle, Drafts()) for handle in handles]
            frame.draft_parents = pack_int32(
                [parent for each in trees for parent in each.parents or range(-1, len(each) - 1)]
            )
    if rows != [(handle, 0) for handle in handles]:
        places = {handle: place for place, handle in enumerate(handles)}
        frame.row_requests = pack_int32([places[handle] for handle, _ in rows])
        if drafts:
            frame.row_draft_offsets = pack_int32([offset for _, offset in rows])
    return frame


def describe_misuse(new_token_ids: object, drafts: object, rows: object, parents: object) -> InvalidArgument:
    """Make the error for arguments of a step that have the wrong types."""
    by_handle = {"new_token_ids": new_token_ids, "drafts": drafts or {}, "draft_parents": parents or {}}
    for name, listed in by_handle.items():
        of = "integers" if name == "draft_parents" else "ids"
        if not isinstance(listed, Mapping):
            kind = type(listed).__name__
            return InvalidArgument(f"{name} is of type {kind}; pass a dict of a sequence of {of} for each handle")
        for handle, ids in listed.items():
            if not hasattr(ids, "__len__") or not getattr(ids, "shape", (0,)):
                return InvalidArgument(
                    f"{name} of {handle} are {ids!r}; pass a sequence of {of}, such as [1], or [] for none"
                )
            if name == "draft_parents" and not all(hasattr(parent, "__index__") for parent in ids):
                return InvalidArgument(f"draft_parents of {handle} are {ids!r}; pass a sequence of integers")
    for place, row in enumerate(rows) if isinstance(rows, Iterable) else ():
        if not (isinstance(row, Handle) or (isinstance(row, tuple) and [*map(type, row)] == [Handle, int])):
            return InvalidArgument(f"rows[{place}] is {row!r}; pass a handle, or (handle, draft offset)")
    return InvalidArgument(f"rows is {rows!r}; pass a sequence of handles, or of (handle, draft offset)")


def wrong_ids(token_ids: Mapping[Handle, Sequence[int]], vocab_size: int) -> dict[Handle, InvalidArgument]:
    """Make an error for each request with an id that is not an integer in [0, vocab_size)."""
    wrong = {}
    for handle, ids in token_ids.items():
        try:
            _token_column([ids], vocab_size)
        except InvalidArgument as error:
            wrong[handle] = error
    return wrong


def _token_column(token_ids: Iterable[Sequence[int]], vocab_size: int) -> bytes:
    every = list(chain.from_iterable(token_ids))
    try:
        column = pack_int32(every)
    except struct.error as error:
        raise InvalidArgument(f"token ids must be integers of 32 bits: {error}") from error
    if every and (min(every) < 0 or max(every) >= vocab_size):
        wrong = next(token_id for token_id in every if not 0 <= token_id < vocab_size)
        raise InvalidArgument(
            f"token id {wrong}: ids must lie in [0, {vocab_size}); a placeholder (-1) must be replaced by the id "
            "that was sampled before it joins a history"
        )
    return column
