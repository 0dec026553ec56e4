"""Reading of step frames. Invalid ones are in `test_column_overflow.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument, LimitExceeded, Request
from logitport.core.drafts import Drafts
from logitport.session import Handle
from logitport.session.steps.step_frame import place_rows, step_frame
from logitport_proto import processing_pb2
from logitport_session.steps.columns import StepColumns, StepLayout
from tests.server.conftest import int32

VOCAB = 50
MAX_TOKENS = 1000
MAX_DRAFTS = 4
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=MAX_DRAFTS)


def read(frame: processing_pb2.Step) -> tuple[StepLayout, StepColumns]:
    arrived = processing_pb2.Step.FromString(frame.SerializeToString())
    layout = StepLayout.read(arrived, MAX_DRAFTS)
    return layout, StepColumns.read(arrived, layout, VOCAB, MAX_TOKENS)


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[Handle, list[int]], dict[Handle, Drafts], list[Any] | None]:
    """Valid arguments of Session.step."""
    slots = draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=6))
    handles = [
        Handle(slot, draw(st.integers(0, 2**31 - 1)), Request(prompt_token_ids=draw(IDS), output_token_ids=draw(IDS)))
        for slot in slots
    ]
    new_ids = {handle: draw(IDS) for handle in handles}
    ids = {handle: draw(IDS) for handle in handles if draw(st.booleans())}
    parents = {handle: [draw(st.integers(-1, at - 1)) for at in range(len(each))] for handle, each in ids.items()}
    drafts = {handle: Drafts(each, parents[handle] if draw(st.booleans()) else ()) for handle, each in ids.items()}
    rows = None
    if handles and draw(st.booleans()):
        every = [(handle, offset) for handle in handles for offset in range(1 + len(drafts.get(handle, ())))]
        rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=8))
    return new_ids, drafts, rows


@given(steps())
def test_the_server_reads_the_columns_that_the_client_writes(
    step: tuple[dict[Handle, list[int]], dict[Handle, Drafts], list[Any] | None],
) -> None:
    new_ids, drafts, rows = step
    placed = place_rows(new_ids, drafts, rows)
    layout, columns = read(step_frame(new_ids, drafts, placed, VOCAB))
    handles = list(new_ids)
    assert layout.slots == tuple(handle.slot for handle in handles)
    assert layout.generations == tuple(handle.generation for handle in handles)
    assert layout.draft_counts == tuple(len(drafts.get(handle, ())) for handle in handles)
    assert [(handles[place], offset) for place, offset in layout.rows] == placed
    assert list(columns.base_lengths) == [len(handle.history) for handle in handles]
    assert list(columns.history_crcs) == [handle.history.crc() for handle in handles]
    assert [list(ids) for ids in columns.new_token_ids] == list(new_ids.values())
    assert [list(ids) for ids in columns.draft_token_ids] == [list(drafts.get(handle, ())) for handle in handles]
    assert [handle for handle, each in zip(handles, layout.draft_parents, strict=True) if each] == (
        [handle for handle in handles if drafts.get(handle)] if any(each.parents for each in drafts.values()) else []
    )
    for handle, parents in zip(handles, layout.draft_parents, strict=True):
        if handle in drafts and drafts[handle].parents:
            assert parents == drafts[handle].parents
    assert not any(columns.invalid)


def frame(**columns: bytes) -> processing_pb2.Step:
    """A valid frame of two requests, 3 and 1, with some columns replaced."""
    valid = {
        "slots": int32(3, 1),
        "generations": int32(0, 5),
        "base_lengths": int32(4, 0),
        "history_crcs": np.array([2**32 - 1, 0], "<u4").tobytes(),
        "new_token_counts": int32(2, 0),
        "new_token_ids": int32(7, 8),
        "draft_counts": int32(0, 1),
        "draft_token_ids": int32(9),
        "row_requests": int32(1, 0, 1),
        "row_draft_offsets": int32(1, 0, 0),
    }
    return processing_pb2.Step(**{**valid, **columns})


def test_optional_columns() -> None:
    bare, columns = read(frame(row_requests=b"", row_draft_offsets=b"", draft_counts=b"", draft_token_ids=b""))
    assert bare.rows == ((0, 0), (1, 0))
    assert not any(columns.draft_token_ids)
    assert read(frame(row_draft_offsets=b""))[0].rows == ((1, 0), (0, 0), (1, 0))
    nothing_new = frame(new_token_counts=b"", new_token_ids=b"")
    assert read(nothing_new)[1].new_token_ids == [(), ()]


def test_parents_of_drafts() -> None:
    drafts = {"draft_counts": int32(2, 3), "draft_token_ids": int32(9, 8, 7, 6, 5), "row_draft_offsets": b""}
    chains, trees = read(frame(**drafts))[0], read(frame(**drafts, draft_parents=int32(-1, -1, -1, 0, 0)))[0]
    assert (chains.draft_parents, chains.draft_depths) == (((), ()), (2, 3))
    assert (trees.draft_parents, trees.draft_depths) == (((-1, -1), (-1, 0, 0)), (1, 2))
    with pytest.raises(
        InvalidArgument, match=r"draft_parents\[3\] is 1, of draft 1 of request 1 of the step; send .* in \[0, 1\)"
    ):
        read(frame(**drafts, draft_parents=int32(-1, -1, -1, 1, 0)))


@pytest.mark.parametrize(
    "column", ["slots", "generations", "draft_counts", "draft_parents", "row_requests", "row_draft_offsets"]
)
def test_a_layout_is_identified_by_its_columns(column: str) -> None:
    before = StepLayout.columns(frame())
    assert before == StepLayout.columns(frame(base_lengths=int32(9, 9), new_token_ids=int32(1, 1)))
    assert before != StepLayout.columns(frame(**{column: int32(1, 1, 1)}))


@pytest.mark.parametrize("column", [f.name for f in processing_pb2.Step.DESCRIPTOR.fields if f.type == f.TYPE_BYTES])
@given(data=st.binary(max_size=12))
def test_arbitrary_columns_are_read_or_refused(column: str, data: bytes) -> None:
    try:
        layout, columns = read(frame(**{column: data}))
    except InvalidArgument:
        return
    n = len(layout.slots)
    assert all(0 <= place < n and 0 <= offset <= MAX_DRAFTS for place, offset in layout.rows)
    assert len(columns.new_token_ids) == len(columns.draft_token_ids) == len(columns.invalid) == n


@pytest.mark.parametrize(("base", "new", "drafts", "refused"), [(998, 1, 1, False), (998, 2, 1, True), (0, 0, 0, 0)])
def test_a_history_that_gets_too_long_fails_only_its_request(base: int, new: int, drafts: int, refused: bool) -> None:
    frame = processing_pb2.Step(
        slots=int32(0, 1),
        generations=int32(0, 0),
        base_lengths=int32(base, 5),
        history_crcs=int32(0, 0),
        new_token_counts=int32(new, 1),
        new_token_ids=int32(*range(new + 1)),
        draft_counts=int32(drafts, 0),
        draft_token_ids=int32(*range(drafts)),
    )
    _, columns = read(frame)
    assert [type(error) for error in columns.invalid] == [LimitExceeded if refused else type(None), type(None)]
    assert not refused or "1001 token ids in one request" in str(columns.invalid[0])
