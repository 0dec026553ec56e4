"""The values that programs compute from histories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from logitport.core.history import History
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime import tokens

if TYPE_CHECKING:
    import pytest


def test_steps_do_not_count_the_history_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RequestTokens(History(np.arange(32_768) % 1000))
    out = torch.ones(1, 2000, dtype=torch.bool)
    tokens.fill_counts([request], out, generated=False)
    monkeypatch.setattr(np, "unique", None)
    request.history.append(1500)
    tokens.fill_counts([request], out, generated=False)
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
