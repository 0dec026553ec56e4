"""Frames of a session: new tokens of each request, the rows of the logits, and admissions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Union

from logitport import trace_context
from logitport.core.history import listed_ids
from logitport.errors import InvalidArgument, LogitportError, NotFound
from logitport.request import checked, set_history
from logitport_programs.request_tokens import RequestTokens
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.core.history import TokenIds
    from logitport.request import Request
    from logitport.session.program_call import ProgramCall


# Requests beyond this size go into another frame. It is far below the default message limit of either end.
_LARGE_BYTES = 4 << 20
_LISTS = frozenset((list, tuple))

_ADMISSION = ("reads_logits", "sends_logits", "follows_from_history", "processors", "programs", "programs_on_server")


class Handle:
    """A request that a session holds; compared by identity.

    Attributes:
        request_id: the request's.
        reads_logits: whether its chain reads logits: its steps end with `PendingStep.apply`, on the logits.
        sends_logits: whether they are sent to the server at each step.
        processors: the key of each processor of its chain, as `AdmittedChain.processors`.
        names: the registered name under which each was requested, "" for none.
        programs: the programs of its chain that the engine runs, in their order.
        programs_on_server: whether the server runs its programs, although this process runs others.
        follows_from_history: whether the state of its processors follows from the history, even if they read logits.
        skips: whether its rows stay unchanged if a processor fails.
        history: its tokens, including the new ids of every step.
        tokens: counts the ids of the history, for programs.
        processed: whether a processor has received logits of it, and state with them.
        removed: whether the session has dropped it.
        trace: the trace in which it was added, as headers; see `trace_context`.
    """

    __slots__ = (
        *("_message", "follows_from_history", "generation", "history", "names", "processed", "processors"),
        *("programs", "programs_on_server", "reads_logits", "removed", "request_id", "sends_logits", "skips", "slot"),
        *("tokens", "trace"),
    )

    def __init__(self, slot: int, generation: int, request: Request) -> None:
        self.slot = slot
        self.generation = generation
        # A copy made at admission, so that later changes to the engine's objects have no effect.
        self._message = checked(request).to_proto_without_history()
        self.request_id = self._message.request_id
        self.history = request.history()
        self.tokens = RequestTokens(self.history)
        self.processors: tuple[str, ...] = ()
        self.names = tuple(call.processor.name for call in self._message.processors)
        self.programs: tuple[ProgramCall, ...] = ()
        self.programs_on_server = False
        self.follows_from_history = False
        self.skips = self._message.on_error == common_pb2.ON_ERROR_SKIP
        self.reads_logits = False
        self.sends_logits = False
        self.processed = False
        self.removed = False
        self.trace = trace_context.headers()

    @property
    def message(self) -> common_pb2.Request:
        """The request, without its ids. Do not write to it."""
        return self._message

    @property
    def params(self) -> list[bytes]:
        """The parameters of each processor of the chain, as JSON."""
        return [call.params for call in self._message.processors]

    def admitted(self, chain: processing_pb2.AdmittedChain, *, reads_logits: bool) -> None:
        """Record what a server has reported of the request when it admitted it, the first time or again.

        Raises:
            LogitportError: the chain has another number of processors.
        """
        processors = chain.processors
        if len(processors) != len(self._message.processors):
            raise LogitportError(
                f"the server admitted {len(processors)} processors of the {len(self._message.processors)} of request "
                f"{self.request_id!r}; close the session"
            )
        self.reads_logits = self.sends_logits = reads_logits
        self.follows_from_history = chain.follows_from_history
        self.processors = tuple(processors)
        for call, digest in zip(self._message.processors, processors, strict=True):
            if call.processor.WhichOneof("by") == "name":  # a name may be bound to another digest later
                call.processor.digest = digest

    @property
    def admission(self) -> tuple[Any, ...]:
        """Reports of servers about the request, and the choice of the side that runs its programs. Can be set."""
        return tuple(getattr(self, name) for name in _ADMISSION)

    @admission.setter
    def admission(self, admission: tuple[Any, ...]) -> None:
        for name, value in zip(_ADMISSION, admission, strict=True):
            setattr(self, name, value)

    def digests(self) -> list[str]:
        """Digests of the processors in its chain that are named by digest."""
        return [call.processor.digest for call in self._message.processors if call.processor.digest]

    def write(self, message: common_pb2.Request) -> None:
        """Write the request into a message, with the present history."""
        message.CopyFrom(self._message)
        set_history(message, self.history)

    def rewind(self, length: int) -> None:
        """Cut the history back to `length` ids. Raises InvalidArgument as `History.rewind`."""
        self.history.rewind(length)
        self.tokens.rewound()

    def __repr__(self) -> str:
        return f"<Handle {self.request_id!r} slot {self.slot} generation {self.generation}>"


# A handle, or a handle and its draft offset: how many of its draft tokens the row has seen.
RowLike = Union[Handle, "tuple[Handle, int]"]


def listed_by_handle(token_ids: Mapping[Handle, TokenIds], name: str) -> Mapping[Handle, Sequence[int]]:
    """Convert tensors and arrays of ids to lists. Raises InvalidArgument for another dtype or shape."""
    if _LISTS.issuperset(map(type, token_ids.values())):  # the usual step
        return token_ids  # type: ignore[return-value]
    return {handle: listed_ids(ids, f"{name} of {handle}") for handle, ids in token_ids.items()}


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
    drafts: Mapping[Handle, Sequence[int]],
    rows: Sequence[tuple[Handle, int]],
    vocab_size: int,
) -> processing_pb2.Step:
    """Make the frame for a step. The length and checksum of each history are those before the new ids.

    Raises:
        InvalidArgument: an id is not an integer in [0, vocab_size).
    """
    handles = list(new_token_ids)
    frame = processing_pb2.Step(
        slots=_column([handle.slot for handle in handles]),
        generations=_column([handle.generation for handle in handles]),
        base_lengths=_column([len(handle.history) for handle in handles]),
        history_crcs=struct.pack(f"<{len(handles)}I", *[handle.history.crc() for handle in handles]),
        new_token_counts=_column([len(ids) for ids in new_token_ids.values()]),
        new_token_ids=_token_column(new_token_ids.values(), vocab_size),
    )
    if drafts:
        frame.draft_counts = _column([len(drafts.get(handle, ())) for handle in handles])
        frame.draft_token_ids = _token_column([drafts.get(handle, ()) for handle in handles], vocab_size)
    if rows != [(handle, 0) for handle in handles]:
        places = {handle: place for place, handle in enumerate(handles)}
        frame.row_requests = _column([places[handle] for handle, _ in rows])
        if drafts:
            frame.row_draft_offsets = _column([offset for _, offset in rows])
    return frame


def describe_misuse(new_token_ids: object, drafts: object, rows: object) -> InvalidArgument:
    """Make the error for arguments of a step that have the wrong types."""
    for name, ids_by_handle in (("new_token_ids", new_token_ids), ("drafts", drafts or {})):
        if not isinstance(ids_by_handle, Mapping):
            kind = type(ids_by_handle).__name__
            return InvalidArgument(f"{name} is of type {kind}; pass a dict of a sequence of ids for each handle")
        for handle, ids in ids_by_handle.items():
            if not hasattr(ids, "__len__") or not getattr(ids, "shape", (0,)):
                return InvalidArgument(
                    f"{name} of {handle} are {ids!r}; pass a sequence of ids, such as [1], or [] for none"
                )
    for place, row in enumerate(rows) if isinstance(rows, Iterable) else ():
        if not (isinstance(row, Handle) or (isinstance(row, tuple) and [*map(type, row)] == [Handle, int])):
            return InvalidArgument(f"rows[{place}] is {row!r}; pass a handle, or (handle, draft offset)")
    return InvalidArgument(f"rows is {rows!r}; pass a sequence of handles, or of (handle, draft offset)")


def add_frames(handles: Sequence[Handle], *, in_background: bool = False) -> Iterator[processing_pb2.AddRequests]:
    """Make the frames that admit requests, or send them again, with their present histories.

    There is more than one frame if a single one would be a large message.
    """
    frame, size_bytes = processing_pb2.AddRequests(in_background=in_background), 0
    for handle in handles:
        addition = frame.requests.add(
            slot=handle.slot,
            generation=handle.generation,
            programs_on_server=handle.programs_on_server,
            **handle.trace,
        )
        handle.write(addition.request)
        size_bytes += addition.ByteSize()
        if size_bytes > _LARGE_BYTES:
            yield frame
            frame, size_bytes = processing_pb2.AddRequests(in_background=in_background), 0
    if frame.requests:
        yield frame


def removal(handles: Sequence[Handle]) -> processing_pb2.SessionRequest:
    """Make the frame that drops requests."""
    slots, generations = (_column([getattr(it, name) for it in handles]) for name in ("slot", "generation"))
    return processing_pb2.SessionRequest(remove=processing_pb2.RemoveRequests(slots=slots, generations=generations))


def check_added(frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> None:
    """Check the columns of a reply. Raises LogitportError."""
    sent = len(frame.requests)
    if len(added.reads_logits) != sent or len(added.pending) not in (0, sent) or len(added.chains) != sent:
        raise LogitportError(
            f"{sent} requests were added, but the columns of the server's reply have the lengths "
            f"{len(added.reads_logits)}, {len(added.pending)} and {len(added.chains)}; close the session"
        )


def wrong_ids(token_ids: Mapping[Handle, Sequence[int]], vocab_size: int) -> dict[Handle, InvalidArgument]:
    """Make an error for each request with an id that is not an integer in [0, vocab_size)."""
    wrong = {}
    for handle, ids in token_ids.items():
        try:
            _token_column([ids], vocab_size)
        except InvalidArgument as error:
            wrong[handle] = error
    return wrong


def _column(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _token_column(token_ids: Iterable[Sequence[int]], vocab_size: int) -> bytes:
    every = list(chain.from_iterable(token_ids))
    try:
        column = _column(every)
    except struct.error as error:
        raise InvalidArgument(f"token ids must be integers of 32 bits: {error}") from error
    if every and (min(every) < 0 or max(every) >= vocab_size):
        wrong = next(token_id for token_id in every if not 0 <= token_id < vocab_size)
        raise InvalidArgument(
            f"token id {wrong}: ids must lie in [0, {vocab_size}); a placeholder (-1) must be replaced by the id "
            "that was sampled before it joins a history"
        )
    return column
