"""Checks of recorded events. A file may be damaged, or made by anyone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core.drafts import wrong_parent
from logitport.core.edits import EditKind, Edits
from logitport.core.row_edits import check_edit
from logitport.core.row_events import read_values
from logitport.errors import InvalidArgument
from logitport.shipping.calls import unpack_int32
from logitport_recording.reading.event_fields import drafts_of, json_object

if TYPE_CHECKING:
    from logitport_proto.recording_pb2 import RequestBegan, RequestStepped, SessionBegan, TopLogits

# Fifteen times as wide as any known model. A replay makes whole rows, which a forged size must not make huge.
MAX_VOCAB_SIZE = 1 << 22
_YEAR_10000 = 253_402_300_800  # in seconds since the Unix epoch


def check_opening(began: SessionBegan) -> None:
    """Check a session. Raises InvalidArgument."""
    vocab_size = began.opening.vocab_size
    if not 0 < vocab_size <= MAX_VOCAB_SIZE:
        raise InvalidArgument(
            f"a session has a vocabulary of {vocab_size} ids; 1 to {MAX_VOCAB_SIZE} are read: each row of a replay "
            "would need the memory of all ids"
        )
    if not 0 <= began.time < _YEAR_10000:
        raise InvalidArgument(f"a session began at {began.time}, which is no time before the year 10000")


def check_request(began: RequestBegan) -> None:
    """Check a request. The history may have any ids, as the engine has sent them. Raises InvalidArgument."""
    try:
        for column in (began.request.prompt_ids, began.request.output_ids):
            unpack_int32(column)
        for text in (began.request.sampling_params, *(one.params for one in began.processors)):
            json_object(text)
    except (InvalidArgument, ValueError) as error:
        raise InvalidArgument(f"request {began.key}: {error}") from error


def check_step(step: RequestStepped, vocab_size: int) -> None:
    """Check a step, and its ids against the vocabulary. The history may have any. Raises InvalidArgument."""
    try:
        if min(step.index, step.base_length, *(row.draft_offset for row in step.rows)) < 0:
            raise InvalidArgument("a number is negative")
        unpack_int32(step.new_token_ids)
        drafts = drafts_of(step)
        if drafts.parents and (len(drafts.parents) != len(drafts) or wrong_parent(drafts.parents) is not None):
            raise InvalidArgument("draft_parents has not, for each draft, -1 or the index of an earlier one")
        for event in step.events:
            if event.name:
                read_values(event.name, event.values)
        for row in step.rows:
            if row.HasField("edits"):
                Edits.from_proto(row.edits, 1, vocab_size)
            for name in ("before", "after"):
                if row.HasField(name):
                    _check_top(getattr(row, name), vocab_size)
    except InvalidArgument as error:
        raise InvalidArgument(f"step {step.index} of request {step.key}: {error}") from error


def _check_top(top: TopLogits, vocab_size: int) -> None:
    ids = unpack_int32(top.ids)
    check_edit(EditKind.DENY, ids, vocab_size)
    if len(top.logits) != 4 * len(ids):
        raise InvalidArgument(f"{len(ids)} ids have {len(top.logits)} bytes of logits")
