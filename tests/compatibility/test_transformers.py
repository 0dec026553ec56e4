"""Every dialect on transformers: `generate` with padded prompts and rows that end one by one, continuous batching."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from logitport.integrations.transformers import RemoteLogitsProcessor, continuous
from tests.compatibility import effect
from tests.compatibility.matrix import TOKENS, every_dialect, lengths, prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import Client

VOCAB, PAD = 256, 0
# Enough ids end a row that rows of 64 tokens end at different steps, and some do not end.
ENDS = [3, 77, 150]


class Native(LogitsProcessor):
    """The effect, in this process."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        processed = scores.clone()
        for ids, row in zip(input_ids, processed, strict=True):
            effect.apply(ids[int((ids != PAD).int().argmax()) :].tolist(), row)
        return processed


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: it is faster for a model this small, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    """A small model with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCAB, bos_token_id=None, pad_token_id=PAD, **sizes, **heads)).eval()


@pytest.fixture(scope="module")
def generate(model: Qwen2ForCausalLM) -> Callable[[LogitsProcessor], list[list[int]]]:
    """Return a function that generates the new ids of eight requests in two batches, each up to its end."""

    def run(processor: LogitsProcessor) -> list[list[int]]:
        outputs: list[list[int]] = []
        for batch in (prompts(VOCAB)[:5], prompts(VOCAB)[5:]):
            longest = max(map(len, batch))
            ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in batch])
            new = model.generate(
                ids,
                attention_mask=(ids != PAD).long(),
                logits_processor=LogitsProcessorList([processor]),
                max_new_tokens=TOKENS,
                do_sample=False,
                eos_token_id=ENDS,
            )[:, longest:]
            for row in new.tolist():
                end = next((at for at, token_id in enumerate(row) if token_id in ENDS), len(row))
                outputs.append(row[: end + 1])
        return outputs

    return run


@pytest.fixture(scope="module")
def native(generate: Callable[[LogitsProcessor], list[list[int]]]) -> list[list[int]]:
    """The output with transformers' own kind of processor."""
    return generate(Native())


@pytest.mark.cell(engine="transformers generate")
@every_dialect
def test_tokens_are_the_native_ones(
    client: Client,
    generate: Callable[[LogitsProcessor], list[list[int]]],
    native: list[list[int]],
    dialect: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("transformers"))
    assert len({len(output) for output in native}) > 2, "rows must end at different steps"
    ref = client.register(effect.DIALECTS[dialect])
    with RemoteLogitsProcessor([(ref, {})], pad_token_id=PAD, eos_token_id=ENDS, client=client) as processor:
        assert generate(processor) == native


@pytest.fixture(scope="module")
def native_alone(model: Qwen2ForCausalLM) -> list[list[int]]:
    """The output with transformers' own kind of processor, one request after the other."""
    return [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            logits_processor=LogitsProcessorList([Native()]),
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=-1,
        )[0, len(prompt) :].tolist()
        for prompt, length in zip(prompts(VOCAB), lengths(), strict=True)
    ]


@pytest.mark.cell(engine="transformers continuous batching")
@every_dialect
def test_tokens_are_the_native_ones_in_continuous_batching(
    client: Client,
    model: Qwen2ForCausalLM,
    native_alone: list[list[int]],
    dialect: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("transformers"))
    remote = continuous.RemoteLogitsProcessor([(client.register(effect.DIALECTS[dialect]), {})], client=client)
    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1)
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=48)
    manager = remote.attach(model.init_continuous_batching(config, small))
    manager.start()
    try:
        for place, (prompt, length) in enumerate(zip(prompts(VOCAB), lengths(), strict=True)):
            manager.add_request(prompt, request_id=str(place), max_new_tokens=length)
        ended: dict[str, Any] = {}
        while len(ended) < len(native_alone):
            output = manager.get_result(timeout=200)
            assert output is not None
            assert output.error is None
            if output.is_finished():
                ended[output.request_id] = output.generated_tokens
    finally:
        manager.stop()
        manager.destroy()
    assert [ended[str(place)] for place in range(len(native_alone))] == native_alone
