"""The columns of step frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitport import InvalidArgument, NotFound, Request
from logitport.core.drafts import Drafts
from logitport.session import Handle
from logitport.session.steps.step_frame import draft_trees, place_rows, step_frame
from tests.client.scripted import int32


def handle(slot: int, prompt: list[int], generation: int = 0) -> Handle:
    return Handle(slot, generation, Request(prompt_token_ids=prompt, request_id=f"r{slot}"))


A, B, C = handle(4, [1, 2, 3], generation=7), handle(0, []), handle(2, [9])


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


def test_columns_of_drafts_and_rows() -> None:
    new_ids = {A: [4], B: []}
    drafts = {B: Drafts([7, 8])}
    frame = step_frame(new_ids, drafts, place_rows(new_ids, drafts, [(B, 2), A, B]), 10)
    assert frame.draft_counts == int32(0, 2)
    assert frame.draft_token_ids == int32(7, 8)
    assert frame.row_requests == int32(1, 0, 1)
    assert frame.row_draft_offsets == int32(2, 0, 0)
    assert frame.draft_parents == b""


def test_parents_are_sent_for_all_drafts_if_one_request_has_a_tree() -> None:
    new_ids: dict[Handle, list[int]] = {A: [], B: [], C: []}
    drafts = draft_trees({A: [5, 6], B: np.array([7, 8, 9])}, {B: np.array([-1, -1, 0], np.int32)})
    frame = step_frame(new_ids, drafts, place_rows(new_ids, drafts, None), 10)
    assert frame.draft_counts == int32(2, 3, 0)
    assert frame.draft_parents == int32(-1, 0, -1, -1, 0)
