"""Ids of a request, counted incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core.history import History
from logitport.programs.runtime import tokens
from logitport.programs.runtime.tokens import RequestTokens

if TYPE_CHECKING:
    import pytest

IDS = st.lists(st.integers(0, 12), max_size=30)


def counted(request: RequestTokens, *, generated: bool) -> dict[int, int]:
    ids, counts = request.counted(generated=generated)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def counts_of(ids: np.ndarray) -> dict[int, int]:
    return {int(each): int((ids == each).sum()) for each in ids}


@settings(max_examples=50, deadline=None)
@given(IDS, IDS, st.lists(IDS | st.integers(0, 40), max_size=6), st.booleans())
def test_counts_are_those_of_the_history(
    prompt: list[int], output: list[int], edits: list[list[int] | int], reads_each_time: bool
) -> None:
    history = History(prompt, output)
    request = RequestTokens(history)
    for edit in edits:
        if reads_each_time:
            for generated in (False, True):
                counted(request, generated=generated)  # counted incrementally from here on
        if isinstance(edit, int):
            history.rewind(max(len(prompt), len(history) - edit))
            request.rewound()
        else:
            history.extend(edit)
    assert counted(request, generated=False) == counts_of(history.token_ids)
    assert counted(request, generated=True) == counts_of(history.output_token_ids)


def test_a_rewind_before_and_after_ids_were_counted() -> None:
    history = History([1, 2], [3])
    request = RequestTokens(history)
    assert counted(request, generated=False) == {1: 1, 2: 1, 3: 1}
    history.extend([4, 5])
    history.rewind(4)  # the id 5 was never counted
    request.rewound()
    assert counted(request, generated=True) == {3: 1, 4: 1}
    history.rewind(2)
    request.rewound()
    history.extend([9])
    assert counted(request, generated=True) == {9: 1}


def test_many_distinct_ids_grow_the_arrays() -> None:
    request = RequestTokens(History())
    request.counted(generated=True)
    request.history.extend(range(500))
    assert counted(request, generated=True) == dict.fromkeys(range(500), 1)


def test_steps_do_not_count_the_history_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RequestTokens(History(np.arange(32_768) % 1000))
    out = torch.ones(1, 2000, dtype=torch.bool)
    tokens.fill_mask([request], out, generated=False)
    monkeypatch.setattr(np, "unique", None)
    request.history.append(1500)
    tokens.fill_mask([request], out, generated=False)
    assert out.nonzero()[:, 1].tolist() == [*range(1000), 1500]


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    out = torch.full((2, 4), 9)
    tokens.fill_counts([RequestTokens(History([-1, 4, 3])), RequestTokens(History([0, 0, 100]))], out, generated=False)
    assert out.tolist() == [[0, 0, 0, 1], [2, 0, 0, 0]]


def test_the_window_is_aligned_to_the_right() -> None:
    out = torch.zeros(3, 4, dtype=torch.int64)
    tokens.fill_history(
        [RequestTokens(History()), RequestTokens(History([1], [2])), RequestTokens(History(range(9)))], out
    )
    assert out.tolist() == [[-1, -1, -1, -1], [-1, -1, 1, 2], [5, 6, 7, 8]]


def test_histories_that_fill_the_window() -> None:
    out = torch.zeros(2, 3, dtype=torch.int64)
    tokens.fill_history([RequestTokens(History([7, 8, 9])), RequestTokens(History(range(9)))], out)
    assert out.tolist() == [[7, 8, 9], [6, 7, 8]]
