"""Reads the arguments of a step, with the compiled core or in Python."""

from __future__ import annotations

from collections import Counter
from operator import index
from typing import TYPE_CHECKING, NamedTuple, cast

from logitport.core.compiled import core
from logitport.core.drafts import Drafts
from logitport.errors import InvalidArgument, LogitportError
from logitport.session.steps.step_frame import (
    describe_misuse,
    draft_trees,
    listed_by_handle,
    place_rows,
    step_frame,
    wrong_ids,
)
from logitport.system.local_frames import with_length
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.core.history import TokenIds
    from logitport.session.handle import Handle, RowLike
    from logitport.session.requests.session_requests import SessionRequests

    # By request: ids as an engine passes them.
    Ids = Mapping[Handle, TokenIds]


class StepContent(NamedTuple):
    """A step that was checked, and is not sent yet.

    Attributes:
        handles: the requests.
        drafts: the draft tokens of requests that speculate.
        rows: the request and draft offset of each row. Do not write to it, or to `handles`: later steps have the same.
        serialize: makes the frame with this number, as `Transport.send_bytes` sends it. The histories must not have
            changed since.
        extend: appends the new ids to the histories; called once, when the frame was sent.
    """

    handles: Sequence[Handle]
    drafts: Mapping[Handle, Drafts]
    rows: Sequence[tuple[Handle, int]]
    serialize: Callable[[int], bytes]
    extend: Callable[[], None]


class StepReader:
    """Reads steps, and keeps what it knows of the last one: most steps have the same requests in the same order.

    Args:
        requests: the requests of the session.
        vocab_size: width of the logits.
    """

    def __init__(self, requests: SessionRequests, vocab_size: int) -> None:
        self._requests = requests
        self._table = requests.table
        self._vocab_size = vocab_size
        # Of the last step: what `RequestTable.changes` was then, its requests, and its content but for drafts.
        self._changes = -1
        self._handles: list[Handle] = []
        self._writer: core.StepFrameWriter | None = None
        self._content: StepContent | None = None

    def read(
        self,
        new_token_ids: Ids,
        drafts: Ids | None,
        rows: Sequence[RowLike] | None,
        parents: Ids | None = None,
    ) -> StepContent:
        """Read the arguments of `Session.step`. Raises the errors of that method.

        Requests with ids outside the vocabulary fail; see `SessionRequests.fail`.
        """
        writer = self._writer if self._changes == self._table.changes else None
        if writer is None or not writer.read(new_token_ids, drafts, rows, parents):
            writer = None if core is None else self._renewed_writer(new_token_ids)
            if writer is None or not writer.read(new_token_ids, drafts, rows, parents):
                return self._read_python(new_token_ids, drafts, rows, parents)
        if not drafts and rows is None and self._content is not None:
            return self._content
        # The core has checked the parents, and that all `rows` are pairs.
        kept = draft_trees(drafts, parents, check=False)
        placed = (
            place_rows(dict.fromkeys(self._handles, ()), kept, None)
            if rows is None
            else cast("list[tuple[Handle, int]]", list(rows))
        )
        return StepContent(self._handles, kept, placed, writer.serialize, writer.extend)

    def _renewed_writer(self, new_token_ids: Ids) -> core.StepFrameWriter | None:
        """Make the writer for other requests. Returns None if they are the same, or if the core does not accept them.

        It accepts plain values only. `_read_python` finds whether others are valid, or what is wrong.
        """
        changes, handles = self._table.changes, list(new_token_ids) if type(new_token_ids) is dict else []
        if self._changes == changes and self._handles == handles:
            return None
        self._writer = core.step_frame_writer(new_token_ids, self._table.handles, self._vocab_size)
        self._changes, self._handles = changes, handles
        if (writer := self._writer) is not None:
            rows = [(handle, 0) for handle in handles]
            self._content = StepContent(handles, {}, rows, writer.serialize, writer.extend)
        return writer

    def _read_python(
        self, new_token_ids: Ids, drafts: Ids | None, rows: Sequence[RowLike] | None, parents: Ids | None
    ) -> StepContent:
        try:
            added = listed_by_handle(new_token_ids, "new_token_ids")
            kept = draft_trees(drafts, parents)
            for handle in added:
                self._table.check(handle)
            placed = place_rows(added, kept, rows)
            try:
                frame = step_frame(added, kept, placed, self._vocab_size)
            except InvalidArgument:
                wrong = wrong_ids(added, self._vocab_size) | wrong_ids(kept, self._vocab_size)
                self._requests.fail(wrong)
                added = {handle: () if handle in wrong else ids for handle, ids in added.items()}
                kept = {
                    handle: Drafts((0,) * len(ids), ids.parents) if handle in wrong else ids
                    for handle, ids in kept.items()
                }
                frame = step_frame(added, kept, placed, self._vocab_size)
        except LogitportError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise describe_misuse(new_token_ids, drafts, rows, parents) from error

        def extend() -> None:
            rows_of = Counter(handle for handle, _ in placed)
            for handle, token_ids in added.items():
                handle.history.extend([index(token_id) for token_id in token_ids])
                handle.history.add_rows(len(token_ids), rows_of[handle])

        def serialize(seq: int) -> bytes:
            return with_length(processing_pb2.SessionRequest(seq=seq, step=frame).SerializeToString())

        return StepContent(list(added), kept, placed, serialize, extend)
