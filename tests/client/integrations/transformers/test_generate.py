"""Models that generate through the service, compared with the same processors in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LogitsProcessor, Qwen2ForCausalLM

from logitport.integrations.transformers import RemoteLogitsProcessor
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.shipped_processors import ForcesLengths, TiltByLastId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport import Client, CustomLogitProcessor
    from logitport.shipping.request import ProcessorLike

    Chain = list[tuple[ProcessorLike, dict[str, Any]]]

VOCAB_SIZE = 512
PAD = 0
NEW = 20


class LocalBatchChain(LogitsProcessor):
    """A chain that runs on tensors in this process, called as SGLang calls its processors."""

    def __init__(self, chain: Sequence[tuple[type[CustomLogitProcessor], dict[str, Any]]], prompt_length: int) -> None:
        self.chain = [(processor(), params) for processor, params in chain]
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for processor, params in self.chain:
            params_list = []
            for row in input_ids.tolist():
                prompt, output = row[: self.prompt_length], row[self.prompt_length :]
                while prompt and prompt[0] == PAD:
                    prompt.pop(0)
                params_list.append({**params, "__req__": SimpleNamespace(origin_input_ids=prompt, output_ids=output)})
            scores = processor(scores, params_list)
        return scores


CHAINS: dict[str, list[tuple[type[CustomLogitProcessor], dict[str, Any]]]] = {
    "disallowed_tokens": [(DisallowedTokens, {"token_ids": list(range(2, VOCAB_SIZE, 3))})],
    "thinking_budget": [
        (
            ThinkingBudget,
            {"thinking_budget": 4, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10},
        )
    ],
    "no_repeat_ngram": [(NoRepeatNGram, {"ngram_size": 1, "window_size": 12})],
    "reads logits": [(TiltByLastId, {"by": 4.0})],
}
CHAINS["all"] = [entry for name in ("reads logits", "disallowed_tokens", "no_repeat_ngram") for entry in CHAINS[name]]

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.4},
    "several sequences": {"do_sample": True, "temperature": 0.4, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "several beams": {"num_beams": 3, "num_return_sequences": 3},
    "sampled beams": {"do_sample": True, "temperature": 0.4, "num_beams": 3},
}


@pytest.mark.parametrize(
    ("chain", "mode"),
    [*((chain, "greedy") for chain in CHAINS), *(("all", mode) for mode in MODES if mode != "greedy")],
)
def test_tokens_equal_those_of_the_same_processor_in_process(
    client: Client, generate: Callable[..., torch.Tensor], prompts: torch.Tensor, chain: str, mode: str
) -> None:
    remote = RemoteLogitsProcessor(CHAINS[chain], pad_token_id=PAD, client=client)
    local = LocalBatchChain(CHAINS[chain], prompts.shape[1])

    through_service = generate(remote, **MODES[mode])

    assert torch.equal(through_service, generate(local, **MODES[mode]))
    assert not torch.equal(through_service, generate(**MODES[mode]))
    assert remote.steps == NEW
    rows = len(prompts) * MODES[mode].get("num_beams", MODES[mode].get("num_return_sequences", 1))
    assert sorted(remote.rows_applied.values()) == [rows * NEW] * len(CHAINS[chain])
    assert remote.seconds > 0


@pytest.mark.parametrize("more", [[], [(ForcesLengths, {})]])
def test_assisted_generation_takes_drafts_back(
    client: Client, generate: Callable[..., torch.Tensor], more: Chain
) -> None:
    chain: Chain = [("no_repeat_ngram", {"ngram_size": 3}), *more]
    repeating = torch.tensor([[30, 31, 32, 30, 31, 32, 30]])
    plain = generate(RemoteLogitsProcessor(chain, client=client), ids=repeating)
    assisted = RemoteLogitsProcessor(chain, client=client)

    assert torch.equal(generate(assisted, ids=repeating, prompt_lookup_num_tokens=4), plain)
    assert assisted.steps > NEW, "no draft was rejected"


def test_a_nested_generate_of_an_assistant_is_another_call(
    client: Client, model: Qwen2ForCausalLM, generate: Callable[..., torch.Tensor]
) -> None:
    ids = torch.tensor([[30, 31, 32]])
    plain = generate(RemoteLogitsProcessor([(ForcesLengths, {})], client=client), ids=ids)
    assisted = generate(RemoteLogitsProcessor([(ForcesLengths, {})], client=client), ids=ids, assistant_model=model)
    assert assisted.tolist() == plain.tolist() == [[103, *range(101, 100 + NEW)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scores_of_every_supported_dtype(client: Client, dtype: torch.dtype) -> None:
    chain: Chain = [(TiltByLastId, {"by": 2.0}), ("disallowed_tokens", {"token_ids": [3]})]
    scores = torch.randn(2, VOCAB_SIZE).to(dtype)
    with RemoteLogitsProcessor(chain, client=client) as remote:
        processed = remote(torch.tensor([[5], [6]]), scores)
    expected = LocalBatchChain([(TiltByLastId, {"by": 2.0}), (DisallowedTokens, {"token_ids": [3]})], 1)(
        torch.tensor([[5], [6]]), scores
    )
    assert processed.dtype == dtype
    assert torch.equal(processed, expected)
