"""Parameters, infinities and modes of the logits of an engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from logitport.core.history import History
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime import history_values
from logitport_programs.runtime.program_runner import Runner
from tests.programs.runtime import build

if TYPE_CHECKING:
    import pytest


def test_rows_have_parameters_of_their_own() -> None:
    logits = torch.ones(3, 5)
    Runner().apply(build.temperature(), logits, slice(None), [{"temperature": 2}, {}, {"temperature": 0.5}])
    assert logits[:, 0].tolist() == [0.5, 1.0, 2.0]


def test_infinite_logits_stay_infinite() -> None:
    logits = torch.tensor([[1.0, -math.inf, 3.0]])
    assert not Runner().apply(build.min_p(), logits, slice(None), [{"min_p": 0.5}])
    assert logits.tolist() == [[-math.inf, -math.inf, 3.0]]


def test_logits_of_inference_mode() -> None:
    runner = Runner()
    with torch.inference_mode():
        logits = torch.ones(2, 5)
        runner.apply(build.temperature(), logits, slice(None), [{"temperature": 2.0}] * 2)
        assert logits[0, 0] == 0.5
    logits = torch.ones(2, 5)
    runner.apply(build.temperature(), logits, slice(None), [{"temperature": 2.0}] * 2)
    assert logits[0, 0] == 0.5


def test_a_square_root_is_correctly_rounded() -> None:
    write = build.Writer()
    write("sqrt", write("logits"))
    logits = torch.tensor([[0.05, 2.0, 0.0]])
    assert not Runner().apply(write.verified(), logits, slice(None))
    assert torch.equal(logits, torch.tensor([[0.05, 2.0, 0.0]]).double().sqrt().float())


def test_steps_do_not_count_the_history_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RequestTokens(History(np.arange(32_768) % 1000))
    out = torch.ones(1, 2000, dtype=torch.bool)
    history_values.fill_counts([request], out, generated=False)
    monkeypatch.setattr(np, "unique", None)
    request.history.append(1500)
    history_values.fill_counts([request], out, generated=False)
    assert out.nonzero()[:, 1].tolist() == [*range(1000), 1500]
