"""Columns with numbers too large, negative, or too many for 32 bits: refused, and nothing is read beyond them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from logitport import InvalidArgument, LimitExceeded, LogitportError, NotFound, Request
from logitport.errors import from_proto
from logitport_proto import processing_pb2
from logitport_session.engine_session import session_admissions, session_steps

VOCAB = 64
LARGEST, SMALLEST = 2**31 - 1, -(2**31)
PROMPT = (5, 6)


def int32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


VALID = {
    "slots": int32(0, 1),
    "generations": int32(0, 0),
    "base_lengths": int32(2, 2),
    "history_crcs": struct.pack("<2I", *[zlib.crc32(int32(*PROMPT))] * 2),
}
DRAFTS = {"draft_counts": int32(2, 1), "draft_token_ids": int32(1, 2, 3)}
# Frames that are refused as a whole.
REFUSED: dict[str, dict[str, bytes]] = {
    "new ids: counts that add up to 2**32, which is 0 in 32 bits": {
        "new_token_counts": int32(LARGEST, LARGEST),
        "new_token_ids": int32(0, 0),
    },
    "new ids: a sum below 0": {"new_token_counts": int32(SMALLEST, 0)},
    "new ids: a negative count that makes up for another": {
        "new_token_counts": int32(3, -1),
        "new_token_ids": int32(1, 2),
    },
    "new ids: one count of the largest": {"new_token_counts": int32(LARGEST, 0)},
    "new ids: fewer than counted": {"new_token_counts": int32(1, 1), "new_token_ids": int32(1)},
    "new ids: more than counted": {"new_token_counts": int32(1, 1), "new_token_ids": int32(1, 2, 3)},
    "new ids without counts": {"new_token_ids": int32(1)},
    "new ids: half an id": {"new_token_counts": int32(1, 1), "new_token_ids": int32(1, 2)[:-1]},
    "new ids: counts of some requests": {"new_token_counts": int32(1), "new_token_ids": int32(1)},
    "drafts: counts that add up to 2**32 - 2": {"draft_counts": int32(LARGEST, LARGEST)},
    "drafts: a negative count": {"draft_counts": int32(SMALLEST, SMALLEST)},
    "drafts: fewer than counted": {"draft_counts": int32(1, 1), "draft_token_ids": int32(1)},
    "drafts: counts of some requests": {"draft_counts": int32(1), "draft_token_ids": int32(1)},
    "drafts: more than the session was opened for": {"draft_counts": int32(5, 0), "draft_token_ids": int32(*[1] * 5)},
    "parents without drafts": {"draft_parents": int32(-1)},
    "parents: fewer than drafts": {**DRAFTS, "draft_parents": int32(-1, 0)},
    "parents: more than drafts": {**DRAFTS, "draft_parents": int32(-1, 0, -1, 0)},
    "parents: half a number": {**DRAFTS, "draft_parents": int32(-1, 0, -1)[:-1]},
    "a draft that is its own parent": {**DRAFTS, "draft_parents": int32(0, 0, -1)},
    "a parent after its child": {**DRAFTS, "draft_parents": int32(1, -1, -1)},
    "a parent of another request": {**DRAFTS, "draft_parents": int32(-1, 0, 1)},
    "a parent below -1": {**DRAFTS, "draft_parents": int32(-1, -2, -1)},
    "the largest parent": {**DRAFTS, "draft_parents": int32(-1, 0, LARGEST)},
    "the smallest parent": {**DRAFTS, "draft_parents": int32(SMALLEST, 0, -1)},
    "rows of a request that is not in the step": {"row_requests": int32(0, 2)},
    "rows of the largest request": {"row_requests": int32(LARGEST)},
    "rows of a request below 0": {"row_requests": int32(-1)},
    "rows of the smallest request": {"row_requests": int32(SMALLEST)},
    "a draft offset beyond": {"row_requests": int32(0), "row_draft_offsets": int32(1)},
    "the largest draft offset": {"row_requests": int32(0), "row_draft_offsets": int32(LARGEST)},
    "a draft offset below 0": {"row_requests": int32(0), "row_draft_offsets": int32(-1)},
    "offsets without rows": {"row_draft_offsets": int32(0, 0)},
    "fewer offsets than rows": {"row_requests": int32(0, 1), "row_draft_offsets": int32(0)},
    "an offset of another request's draft": {
        "draft_counts": int32(0, 1),
        "draft_token_ids": int32(1),
        "row_requests": int32(1, 0),
        "row_draft_offsets": int32(1, 1),
    },
    "half a row": {"row_requests": b"\0"},
    "a slot twice": {"slots": int32(0, 0)},
    "columns of different lengths": {"generations": int32(0, 0, 0)},
    "a column that is too short": {"history_crcs": bytes(4)},
    "no lengths": {"base_lengths": b""},
    "half an element": {"slots": bytes(7)},
}
# Frames that fail only the first request.
ONE_FAILS: dict[str, dict[str, bytes]] = {
    "a negative length": {"base_lengths": int32(-1, 2)},
    "the smallest length": {"base_lengths": int32(SMALLEST, 2)},
    "the largest length": {"base_lengths": int32(LARGEST, 2)},
    "a length inside the prompt": {"base_lengths": int32(1, 2)},
    "another history": {"history_crcs": struct.pack("<2I", 2**32 - 1, zlib.crc32(int32(*PROMPT)))},
    "another generation": {"generations": int32(LARGEST, 0)},
    "a generation below 0": {"generations": int32(-1, 0)},
    "the largest slot": {"slots": int32(LARGEST, 1)},
    "a slot below 0": {"slots": int32(SMALLEST, 1)},
    "an id of the vocabulary's size": {"new_token_counts": int32(1, 0), "new_token_ids": int32(VOCAB)},
    "an id below 0": {"new_token_counts": int32(1, 0), "new_token_ids": int32(-1)},
    "the smallest id": {"new_token_counts": int32(1, 0), "new_token_ids": int32(SMALLEST)},
    "a draft id beyond": {"draft_counts": int32(1, 0), "draft_token_ids": int32(LARGEST)},
    "a draft id below 0": {"draft_counts": int32(1, 0), "draft_token_ids": int32(-1)},
}


@pytest.fixture
def engine(open_engine: Any) -> Any:
    """A session with two requests."""
    opened = open_engine(VOCAB, max_draft_tokens=4)
    for slot in range(2):
        opened.add(slot, [("DenyHistory", {})], PROMPT)
    return opened


def send(engine: Any, columns: dict[str, bytes]) -> processing_pb2.StepEdits:
    """Send a step with these columns, and return the reply."""
    reply = processing_pb2.StepEdits()
    frame = processing_pb2.SessionRequest(seq=1, step=processing_pb2.Step(**columns))
    session_steps.step(engine.session, frame.step, frame.SerializeToString(), reply)
    return reply


@pytest.mark.parametrize("name", REFUSED)
def test_the_frame_is_refused_and_changes_nothing(engine: Any, name: str) -> None:
    with pytest.raises(InvalidArgument):
        send(engine, VALID | REFUSED[name])
    assert engine.denied(send(engine, VALID), 2) == [list(PROMPT)] * 2


@pytest.mark.parametrize("name", ONE_FAILS)
def test_one_request_fails(engine: Any, name: str) -> None:
    reply = send(engine, VALID | ONE_FAILS[name])
    (failure,) = reply.failures
    assert type(from_proto(failure.error)) in (LogitportError, NotFound, InvalidArgument, LimitExceeded)
    assert engine.denied(reply, 2) == [[], list(PROMPT)]


@pytest.mark.parametrize("slot", [SMALLEST, -1, 2**20, LARGEST])
def test_slots_outside_the_session(engine: Any, slot: int) -> None:
    reply = processing_pb2.RequestsAdded()
    addition = processing_pb2.SlottedRequest(slot=slot, request=Request().to_proto())
    session_admissions.add(engine.session, processing_pb2.AddRequests(requests=[addition]), reply)
    assert [type(from_proto(failure.error)) for failure in reply.failures] == [InvalidArgument]
    engine.session.remove(processing_pb2.RemoveRequests(slots=int32(slot), generations=int32(0)))
    assert engine.denied(send(engine, VALID), 2) == [list(PROMPT)] * 2
