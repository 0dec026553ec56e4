"""Ids of a request, counted incrementally."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport.programs.runtime import tokens
from logitport.programs.runtime.tokens import RequestTokens

IDS = st.lists(st.integers(0, 12), max_size=30)


def counted(request: RequestTokens, *, generated: bool) -> dict[int, int]:
    ids, counts = request.counted(generated=generated)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def counts_of(ids: np.ndarray) -> dict[int, int]:
    return {int(each): int((ids == each).sum()) for each in ids}


@settings(max_examples=50, deadline=None)
@given(IDS, IDS, st.lists(IDS | st.integers(0, 40), max_size=6))
def test_counts_are_those_of_the_history(prompt: list[int], output: list[int], edits: list[list[int] | int]) -> None:
    request = RequestTokens(prompt, output)
    for edit in edits:
        for generated in (False, True):
            counted(request, generated=generated)  # counted incrementally from here on
        if isinstance(edit, int):
            request.rewind(max(len(prompt), len(request) - edit))
        else:
            request.extend(edit)
        assert counted(request, generated=False) == counts_of(request.history.token_ids)
        assert counted(request, generated=True) == counts_of(request.history.output_token_ids)


def test_many_distinct_ids_grow_the_arrays() -> None:
    request = RequestTokens()
    request.counted(generated=True)
    request.extend(range(500))
    assert counted(request, generated=True) == dict.fromkeys(range(500), 1)


def test_a_rewind_into_the_prompt_changes_nothing() -> None:
    request = RequestTokens([1, 2], [3])
    request.counted(generated=False)
    for length in (1, 4, -1):
        with pytest.raises(InvalidArgument):
            request.rewind(length)
    assert counted(request, generated=False) == {1: 1, 2: 1, 3: 1}


def test_steps_do_not_count_the_history_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RequestTokens(np.arange(32_768) % 1000)
    out = torch.ones(1, 2000, dtype=torch.bool)
    tokens.fill_mask([request], out, generated=False)
    monkeypatch.setattr(np, "unique", None)
    request.append(1500)
    tokens.fill_mask([request], out, generated=False)
    assert out.nonzero()[:, 1].tolist() == [*range(1000), 1500]


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    out = torch.full((2, 4), 9)
    tokens.fill_counts([RequestTokens([-1, 4, 3]), RequestTokens([0, 0, 100])], out, generated=False)
    assert out.tolist() == [[0, 0, 0, 1], [2, 0, 0, 0]]


def test_the_window_is_aligned_to_the_right() -> None:
    out = torch.zeros(3, 4, dtype=torch.int64)
    tokens.fill_history([RequestTokens(), RequestTokens([1], [2]), RequestTokens(range(9))], out)
    assert out.tolist() == [[-1, -1, -1, -1], [-1, -1, 1, 2], [5, 6, 7, 8]]


def test_histories_that_fill_the_window() -> None:
    out = torch.zeros(2, 3, dtype=torch.int64)
    tokens.fill_history([RequestTokens([7, 8, 9]), RequestTokens(range(9))], out)
    assert out.tolist() == [[7, 8, 9], [6, 7, 8]]
