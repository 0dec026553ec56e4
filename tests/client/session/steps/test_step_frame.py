"""The columns of step frames."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from logitport import InvalidArgument, NotFound, Request
from logitport.session import Handle
from logitport.session.steps.step_frame import place_rows, step_frame
from tests.client.scripted import int32


def handle(slot: int, prompt: list[int], generation: int = 0) -> Handle:
    return Handle(slot, generation, Request(prompt_token_ids=prompt, request_id=f"r{slot}"))


A, B, C = handle(4, [1, 2, 3], generation=7), handle(0, []), handle(2, [9])


@pytest.mark.parametrize(
    ("new_ids", "drafts", "rows", "placed"),
    [
        ({A: [1], B: []}, {}, None, [(A, 0), (B, 0)]),
        ({A: [], B: [], C: []}, {A: [5, 6], C: []}, None, [(A, 0), (A, 1), (A, 2), (B, 0), (C, 0)]),
        ({A: [], B: []}, {A: [5]}, [B, (A, 1), (A, 0), B], [(B, 0), (A, 1), (A, 0), (B, 0)]),
        ({}, {}, None, []),
        ({}, {}, [], []),
    ],
)
def test_each_request_has_a_row_and_one_for_each_draft_in_order_or_the_rows_that_are_given(
    new_ids: Any, drafts: Any, rows: Any, placed: Any
) -> None:
    assert place_rows(new_ids, drafts, rows) == placed


@pytest.mark.parametrize(
    ("drafts", "rows", "error", "message"),
    [
        ({}, [A, B], NotFound, "'r0' slot 0 .* is not in the step"),
        ({A: [5]}, [(A, -1)], InvalidArgument, "draft offset -1"),
        ({A: [5]}, [(A, 2)], InvalidArgument, "draft offset 2, but the request has 1 draft tokens"),
        ({B: [5]}, None, NotFound, "drafts .*'r0' slot 0"),
        ({}, [], InvalidArgument, "rows is empty"),
    ],
)
def test_rows_and_drafts_that_the_step_does_not_have(drafts: Any, rows: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        place_rows({A: []}, drafts, rows)


def test_columns() -> None:
    assert step_frame({}, {}, [], 10).ByteSize() == 0
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
