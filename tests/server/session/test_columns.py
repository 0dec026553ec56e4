"""Reading of step frames, and refusal of invalid ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument, LimitExceeded, Request
from logitport.session import Handle
from logitport.session.steps.step_frame import place_rows, step_frame
from logitport_proto import processing_pb2
from logitport_session.steps.columns import StepColumns, StepLayout, unpack_int32

VOCAB = 50
MAX_TOKENS = 1000
MAX_DRAFTS = 4
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=MAX_DRAFTS)


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def read(frame: processing_pb2.Step) -> tuple[StepLayout, StepColumns]:
    arrived = processing_pb2.Step.FromString(frame.SerializeToString())
    layout = StepLayout.read(arrived, MAX_DRAFTS)
    return layout, StepColumns.read(arrived, layout, VOCAB, MAX_TOKENS)


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[Handle, list[int]], dict[Handle, list[int]], list[Any] | None]:
    """Valid arguments of Session.step."""
    slots = draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=6))
    handles = [
        Handle(slot, draw(st.integers(0, 2**31 - 1)), Request(prompt_token_ids=draw(IDS), output_token_ids=draw(IDS)))
        for slot in slots
    ]
    new_ids = {handle: draw(IDS) for handle in handles}
    drafts = {handle: draw(IDS) for handle in handles if draw(st.booleans())}
    rows = None
    if handles and draw(st.booleans()):
        every = [(handle, offset) for handle in handles for offset in range(1 + len(drafts.get(handle, ())))]
        rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=8))
    return new_ids, drafts, rows


@given(steps())
def test_the_server_reads_the_columns_that_the_client_writes(
    step: tuple[dict[Handle, list[int]], dict[Handle, list[int]], list[Any] | None],
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
    assert [list(ids) for ids in columns.draft_token_ids] == [drafts.get(handle, []) for handle in handles]
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


def test_the_valid_frame() -> None:
    layout, columns = read(frame())
    assert layout == StepLayout((3, 1), (0, 5), (0, 1), ((1, 1), (0, 0), (1, 0)))
    assert columns == StepColumns((4, 0), (2**32 - 1, 0), [(7, 8), ()], [(), (9,)], [None, None])


def test_an_empty_frame() -> None:
    assert read(processing_pb2.Step()) == (StepLayout((), (), (), ()), StepColumns((), (), [], [], []))


def test_optional_columns() -> None:
    bare, columns = read(frame(row_requests=b"", row_draft_offsets=b"", draft_counts=b"", draft_token_ids=b""))
    assert bare.rows == ((0, 0), (1, 0))
    assert not any(columns.draft_token_ids)
    assert read(frame(row_draft_offsets=b""))[0].rows == ((1, 0), (0, 0), (1, 0))
    nothing_new = frame(new_token_counts=b"", new_token_ids=b"")
    assert read(nothing_new)[1].new_token_ids == [(), ()]


@pytest.mark.parametrize("column", ["slots", "generations", "draft_counts", "row_requests", "row_draft_offsets"])
def test_a_layout_is_identified_by_its_columns(column: str) -> None:
    before = StepLayout.columns(frame())
    assert before == StepLayout.columns(frame(base_lengths=int32(9, 9), new_token_ids=int32(1, 1)))
    assert before != StepLayout.columns(frame(**{column: int32(1, 1, 1)}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"slots": int32(3, 3)}, "slots: a slot is listed twice"),
        ({"slots": b"\0\0\0"}, "slots: 3 bytes"),
        ({"slots": int32(3)}, "generations: 8 bytes; send 1 elements"),
        ({"generations": int32(0)}, "generations: 4 bytes; send 2 elements"),
        ({"base_lengths": b""}, "base_lengths: 0 bytes; send 2 elements"),
        ({"history_crcs": int32(0, 0, 0)}, "history_crcs: 12 bytes; send 2 elements"),
        ({"new_token_counts": int32(2)}, "new_token_counts: 4 bytes; send 2 elements"),
        ({"new_token_counts": b""}, "new_token_ids: 2 ids, but the counts add up to 0"),
        ({"new_token_counts": int32(3, -1)}, "new_token_counts: a count is negative"),
        ({"new_token_counts": int32(2, 1)}, "new_token_ids: 2 ids, but the counts add up to 3"),
        (
            {"new_token_counts": int32(2**31 - 1, 2**31 - 1)},
            f"new_token_ids: 2 ids, but the counts add up to {2**32 - 2}",
        ),
        ({"new_token_ids": b""}, "new_token_ids: 0 ids, but the counts add up to 2"),
        ({"new_token_ids": int32(7, 8)[:-1]}, "new_token_ids: 7 bytes; send a whole number"),
        ({"draft_counts": int32(1)}, "draft_counts: 4 bytes"),
        ({"draft_counts": int32(1, 1)}, "draft_token_ids: 1 ids, but the counts add up to 2"),
        (
            {"draft_counts": int32(0, 5), "draft_token_ids": int32(*[1] * 5)},
            r"draft_counts: 5 draft tokens; .* 4 at most; open it with max_draft_tokens=5 or more, as Client\.session",
        ),
        ({"row_requests": int32(1, 2, 0)}, r"row_requests\[1\] is 2; the step has 2 requests"),
        ({"row_requests": int32(1, 0, -1)}, r"row_requests\[2\] is -1"),
        ({"row_requests": b"\0"}, "row_requests: 1 bytes"),
        ({"row_requests": b""}, "row_draft_offsets: sent without row_requests"),
        ({"row_draft_offsets": int32(1, 0)}, "row_draft_offsets: 8 bytes; send 3 elements"),
        ({"row_draft_offsets": int32(2, 0, 0)}, r"row_draft_offsets\[0\] is 2; its request has 1 draft"),
        ({"row_draft_offsets": int32(-1, 0, 0)}, r"row_draft_offsets\[0\] is -1"),
        ({"row_draft_offsets": int32(0, 1, 0)}, r"row_draft_offsets\[1\] is 1; its request has 0 draft"),
    ],
)
def test_invalid_columns_are_refused(columns: dict[str, bytes], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^Step.{message}"):
        read(frame(**columns))


@pytest.mark.parametrize("token_id", [-1, VOCAB, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("column", ["new_token_ids", "draft_token_ids"])
def test_ids_outside_the_vocabulary(column: str, token_id: int) -> None:
    ids = int32(7, token_id) if column == "new_token_ids" else int32(token_id)
    wrong = int(column == "draft_token_ids")
    _, columns = read(frame(**{column: ids}))
    assert columns.invalid[1 - wrong] is None
    error = columns.invalid[wrong]
    assert error is not None
    assert re.match(rf"Step.{column}: token id {token_id}; .* \[0, 50\)", error.message)


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


@given(st.binary(max_size=9), st.sampled_from([None, 0, 1, 2]))
def test_unpack_int32(data: bytes, length: int | None) -> None:
    if len(data) % 4 == 0 and length in (None, len(data) // 4):
        assert int32(*unpack_int32(data, "Some.column", length)) == data
    else:
        with pytest.raises(InvalidArgument, match=r"^Some\.column: "):
            unpack_int32(data, "Some.column", length)


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
