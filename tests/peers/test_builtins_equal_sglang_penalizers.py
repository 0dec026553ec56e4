"""Compares built-ins with the penalizers of SGLang 0.5.23."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.peers.sampling import HISTORIES, VOCAB_SIZE, assert_same, random_logits, run


class Orchestrator(SimpleNamespace):
    """The attributes that penalizers read; they keep a weak reference."""


def penalized(modules, module, name, logits, params, outputs):
    """Logits of SGLang after these output ids, for a row after the other, so that outputs may differ in length."""
    getattr(modules, module).is_pin_memory_available = lambda device: False
    rows = []
    for row, (one, output) in enumerate(zip(params, outputs, strict=True)):
        tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=None)
        sampling_params = SimpleNamespace(**{"stop_token_ids": None, **one})
        req = SimpleNamespace(sampling_params=sampling_params, eos_token_ids={3}, tokenizer=tokenizer)
        orchestrator = Orchestrator(reqs=lambda req=req: [req], vocab_size=VOCAB_SIZE, device="cpu")
        penalizer = getattr(getattr(modules, module), name)(orchestrator)
        penalizer._prepare()
        for token_id in output:
            penalizer._cumulate_output_tokens(torch.tensor([token_id]))
        result = logits[row : row + 1].clone()
        penalizer._apply(result)
        rows.append(result)
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "their_class", "numbers"),
    [
        ("presence_penalty", "BatchedPresencePenalizer", (0.3, -1.7, 0.0, 2.0)),
        # SGLang adds it to itself for each occurrence; the multiples of these numbers are exact.
        ("frequency_penalty", "BatchedFrequencyPenalizer", (0.25, -1.5, 0.0, 2.0)),
    ],
)
def test_penalties(sglang_penalizers, name, their_class, numbers, dtype):
    params = [{name: number} for number in numbers]
    outputs = [output for _, output in HISTORIES]
    for logits in random_logits(4, 0):
        theirs = penalized(sglang_penalizers, name, their_class, logits.to(dtype), params, outputs)
        assert_same(run(name, logits.to(dtype), params, HISTORIES), theirs)


def test_frequency_penalties_with_inexact_multiples(sglang_penalizers):
    outputs = [[5] * 100, [5, 6] * 50, [7], [8] * 1000]
    params = [{"frequency_penalty": 0.1}] * 4
    logits = random_logits(4, 0)[0]
    theirs = penalized(sglang_penalizers, "frequency_penalty", "BatchedFrequencyPenalizer", logits, params, outputs)
    found = run("frequency_penalty", logits, params, [([], output) for output in outputs])
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


def test_repetition_penalty_of_generated_ids(sglang_penalizers):
    """SGLang does not penalize the ids of the prompt."""
    params = [{"repetition_penalty": number} for number in (1.2, 2.0, 0.5, 1.0)]
    outputs = [output for _, output in HISTORIES]
    for logits in random_logits(4, 0):
        theirs = penalized(
            sglang_penalizers, "repetition_penalty", "BatchedRepetitionPenalizer", logits, params, outputs
        )
        assert_same(run("repetition_penalty", logits, params, [([], output) for output in outputs]), theirs)


@pytest.mark.parametrize("count", range(6))
def test_min_tokens(sglang_penalizers, count):
    outputs = [output for _, output in HISTORIES]
    logits = random_logits(4, 0)[0]
    params = [{"min_new_tokens": count, "stop_token_ids": {8}}] * 4
    theirs = penalized(sglang_penalizers, "min_new_tokens", "BatchedMinNewTokensPenalizer", logits, params, outputs)
    found = run("min_tokens", logits, [{"min_tokens": count, "stop_token_ids": [8, 3]}] * 4, HISTORIES)
    assert_same(found, theirs)
