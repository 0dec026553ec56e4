"""The columns of step frames."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from logitport import InvalidArgument, NotFound, Request
from logitport.session import Handle
from logitport.session.steps.step_frame import place_rows, step_frame


def handle(slot: int, prompt: list[int], generation: int = 0) -> Handle:
    return Handle(slot, generation, Request(prompt_token_ids=prompt, request_id=f"r{slot}"))


A, B, C = handle(4, [1, 2, 3], generation=7), handle(0, []), handle(2, [9])


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def test_by_default_each_request_has_one_row_in_order() -> None:
    assert place_rows({A: [1], B: []}, {}, None) == [(A, 0), (B, 0)]


def test_each_draft_token_adds_a_row() -> None:
    assert place_rows({A: [], B: [], C: []}, {A: [5, 6], C: []}, None) == [(A, 0), (A, 1), (A, 2), (B, 0), (C, 0)]


def test_explicit_rows_are_kept() -> None:
    assert place_rows({A: [], B: []}, {A: [5]}, [B, (A, 1), (A, 0), B]) == [(B, 0), (A, 1), (A, 0), (B, 0)]


def test_a_row_of_a_request_that_is_not_in_the_step() -> None:
    with pytest.raises(NotFound, match=r"'r0' slot 0 .* is not in the step"):
        place_rows({A: []}, {}, [A, B])


@pytest.mark.parametrize("offset", [-1, 2])
def test_a_row_beyond_the_drafts(offset: int) -> None:
    with pytest.raises(InvalidArgument, match=f"draft offset {offset}, but the request has 1 draft tokens"):
        place_rows({A: []}, {A: [5]}, [(A, offset)])


def test_drafts_of_a_request_that_is_not_in_the_step() -> None:
    with pytest.raises(NotFound, match=r"drafts .*'r0' slot 0 .* is not in the step"):
        place_rows({A: []}, {B: [5]}, None)


def test_requests_without_any_row() -> None:
    with pytest.raises(InvalidArgument, match="rows is empty"):
        place_rows({A: [1]}, {}, [])


def test_a_step_without_requests() -> None:
    assert place_rows({}, {}, None) == []
    assert place_rows({}, {}, []) == []
    assert step_frame({}, {}, [], 10).ByteSize() == 0


def test_columns() -> None:
    new_ids = {A: [4], B: [], C: [5, 6]}
    frame = step_frame(new_ids, {}, place_rows(new_ids, {}, None), 10)
    assert frame.slots == int32(4, 0, 2)
    assert frame.generations == int32(7, 0, 0)
    assert frame.base_lengths == int32(3, 0, 1)
    crcs = [zlib.crc32(int32(1, 2, 3)), 0, zlib.crc32(int32(9))]
    assert frame.history_crcs == np.array(crcs, "<u4").tobytes()
    assert frame.new_token_counts == int32(1, 0, 2)
    assert frame.new_token_ids == int32(4, 5, 6)
    assert (frame.draft_counts, frame.draft_token_ids, frame.row_requests, frame.row_draft_offsets) == (b"",) * 4


def test_columns_of_drafts_and_rows() -> None:
    new_ids = {A: [4], B: []}
    drafts = {B: [7, 8]}
    frame = step_frame(new_ids, drafts, place_rows(new_ids, drafts, [(B, 2), A, B]), 10)
    assert frame.draft_counts == int32(0, 2)
    assert frame.draft_token_ids == int32(7, 8)
    assert frame.row_requests == int32(1, 0, 1)
    assert frame.row_draft_offsets == int32(2, 0, 0)


@pytest.mark.parametrize("ids", [[3], (3,), np.array([3]), np.array([3], np.uint8), [np.int64(3)]])
def test_ids_of_any_integer_kind(ids: Any) -> None:
    assert step_frame({A: ids}, {}, [(A, 0)], 10).new_token_ids == int32(3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([-1], r"token id -1: ids must lie in \[0, 10\); a placeholder"),
        ([3, 10], "token id 10"),
        ([2**40], "integers of 32 bits"),
        ([2**70], "integers"),
        ([1.0], "integers"),
        (["1"], "integers"),
        ([None], "integers"),
    ],
)
@pytest.mark.parametrize("as_drafts", [False, True])
def test_invalid_ids_are_refused(ids: list[Any], message: str, as_drafts: bool) -> None:
    new_ids, drafts = ({A: []}, {A: ids}) if as_drafts else ({A: ids}, {})
    with pytest.raises(InvalidArgument, match=message):
        step_frame(new_ids, drafts, [(A, 0)], 10)
