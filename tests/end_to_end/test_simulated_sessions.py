"""`logitport_testing.simulate` gives the bits of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, Request
from logitport_testing import ToyModel, simulate

if TYPE_CHECKING:
    from logitport import Client

VOCAB, STEPS = 300, 6
PROMPT = [5, 6]


class AddsThird(EditProcessor):
    """Adds what float32 rounds."""

    def edit(self, request: Any, edits: Any) -> None:
        edits.bias(np.arange(request.vocab_size), 1 / 3)


class ForcesAtFour(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        if len(request.history.output_token_ids) == 4:
            edits.force(9)


class Scales(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        lengths = [len(params["__req__"].output_ids) for params in custom_param_list]
        return logits * (1 + torch.tensor(lengths)[:, None] / 7)


NGRAM = ("no_repeat_ngram", {"ngram_size": 1})
BIAS = ("logit_bias", {"logit_bias": {str(token_id): 1e-3 for token_id in range(200)}})
CHAINS: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "edits": [(AddsThird, {}), NGRAM, BIAS, (AddsThird, {}), ("frequency_penalty", {"frequency_penalty": 0.7})],
    "a force": [(AddsThird, {}), (ForcesAtFour, {}), (AddsThird, {})],
    "logits": [(AddsThird, {}), (Scales, {}), BIAS, (AddsThird, {}), NGRAM],
    "programs": [("temperature", {"temperature": 0.7}), ("top_k", {"top_k": 20}), NGRAM],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_simulation_equals_a_session(client: Client, chain: list[tuple[Any, dict[str, Any]]]) -> None:
    model = ToyModel(VOCAB)
    simulated = simulate(chain, model, PROMPT, STEPS, keep_logits=True)
    history = list(PROMPT)
    with client.session(vocab_size=VOCAB, programs="off") as session:
        handle = session.add(Request(PROMPT, processors=chain))
        for step in simulated.steps:
            logits = model(history)[None].copy()
            result = session.step({handle: history[-1:] if step.index else []}).apply(logits)
            assert not result.failures
            assert step.final_logits is not None
            assert logits[0].tobytes() == step.final_logits.tobytes()
            history.append(int(logits[0].argmax()))
    assert simulated.output_token_ids == tuple(history[len(PROMPT) :])


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_last_processor_leaves_the_final_row(chain: list[tuple[Any, dict[str, Any]]]) -> None:
    for step in simulate(chain, ToyModel(VOCAB), PROMPT, STEPS, top_k=VOCAB).steps:
        last = step.processors[-1].after
        assert last.top_ids.tobytes() == step.final.top_ids.tobytes()
        assert last.top_logits.tobytes() == step.final.top_logits.tobytes()
