"""Parameters, infinities and modes of the logits of an engine."""

from __future__ import annotations

import torch

from logitport_programs.runtime.program_runner import Runner
from tests.programs.runtime import build


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
