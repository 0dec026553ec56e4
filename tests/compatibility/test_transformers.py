"""Every dialect on transformers' `generate`: batches of padded prompts, whose rows end one by one."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

from logitport.integrations.transformers import RemoteLogitsProcessor
from tests.compatibility import effect
from tests.compatibility.matrix import TOKENS, every_dialect, prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import Client

VOCAB, PAD = 256, 0
# So many ids end a row that rows of 64 tokens end at different steps, and some not at all.
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
    """A model as small as this one is slower with more, the more so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def generate() -> Callable[[LogitsProcessor], list[list[int]]]:
    """The new ids of eight requests in two batches, each up to its end."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.2}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=VOCAB, bos_token_id=None, pad_token_id=PAD, **sizes, **heads)
    ).eval()

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
    """What a processor of transformers' own kind gives."""
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
    assert len({len(output) for output in native}) > 2, "rows are to end at different steps"
    ref = client.register(effect.DIALECTS[dialect])
    with RemoteLogitsProcessor(client, [(ref, {})], pad_token_id=PAD, eos_token_id=ENDS) as processor:
        assert generate(processor) == native
