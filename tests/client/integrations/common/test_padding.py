from __future__ import annotations

import numpy as np
import pytest

from logitport import InvalidArgument
from logitport.integrations.common.history_batch import running_rows, tokens_by_id


def test_only_leading_padding_is_found_by_id() -> None:
    prompts = np.array([[0, 0, 5, 0], [6, 0, 5, 0], [0, 0, 0, 0]])
    assert tokens_by_id(prompts, 0).tolist() == [[False, False, True, True], [True] * 4, [False] * 4]
    assert tokens_by_id(prompts, None).all()


@pytest.mark.parametrize(
    ("outputs", "eos_token_ids", "pad_token_id", "running"),
    [
        ([[5, 6], [5, 1], [1, 0]], [1], 0, [0]),
        ([[5, 6], [5, 1], [2, 0]], [1, 2], 0, [0]),
        ([[5, 6], [1, 1], [5, 1]], [1], 1, [0]),
        ([[5, 2], [2, 1], [1, 1]], [1, 2], None, []),
        ([[5, 6], [5, 1], [1, 9]], [], 0, [0, 1, 2]),
        ([[], []], [1], 0, [0, 1]),
        ([[0, 0], [0, 5]], [1], 0, [0, 1]),
    ],
)
def test_a_row_ends_with_an_end_of_sequence_id(
    outputs: list[list[int]], eos_token_ids: list[int], pad_token_id: int | None, running: list[int]
) -> None:
    assert running_rows(np.array(outputs, int), eos_token_ids, pad_token_id) == running


def test_a_row_that_continues_after_its_end_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="row 1 continues with 7 after its end-of-sequence id; expected padding, 0"
    ):
        running_rows(np.array([[1, 0, 0], [1, 0, 7]]), [1], 0)
