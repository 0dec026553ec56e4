"""Every row on transformers: `generate` with padded prompts and rows that end one by one, continuous batching."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

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
from tests.compatibility.matrix import (
    REFERENCES,
    REPORT,
    TOKENS,
    chain_of,
    check_reports,
    every_row,
    lengths,
    prompts,
    reference_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import Client

VOCAB, PAD = 256, 0
# Enough ids end a row that rows of 64 tokens end at different steps, and some do not end.
ENDS = [3, 77, 150]


class Native(LogitsProcessor):
    """A reference, in this process."""

    def __init__(self, reference: str) -> None:
        self.apply = REFERENCES[reference]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        processed = scores.clone()
        for ids, row in zip(input_ids, processed, strict=True):
            self.apply(ids[int((ids != PAD).int().argmax()) :].tolist(), row)
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


Generate: TypeAlias = "Callable[[LogitsProcessor, str], tuple[list[list[int]], list[dict[str, Any]]]]"


@pytest.fixture(scope="module")
def generate(model: Qwen2ForCausalLM) -> Generate:
    """Return a function that generates eight requests in two batches, each up to its end: new ids, and reports."""

    def run(processor: LogitsProcessor, reference: str) -> tuple[list[list[int]], list[dict[str, Any]]]:
        outputs: list[list[int]] = []
        reports: list[dict[str, Any]] = []
        given = prompts(VOCAB, reference)
        for batch in (given[:5], given[5:]):
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
            reports += [one.to_json() for one in getattr(processor, "reports", ())]
        return outputs, reports

    return run


@pytest.fixture(scope="module")
def native(generate: Generate) -> Callable[[str], list[list[int]]]:
    """The output with transformers' own kind of processor."""
    return cache(lambda reference: generate(Native(reference), reference)[0])


@pytest.mark.cell(engine="transformers generate")
@every_row
def test_tokens_are_the_native_ones(
    client: Client,
    generate: Generate,
    native: Callable[[str], list[list[int]]],
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("transformers"))
    reference = reference_of(row)
    expected = native(reference)
    if reference in ("effect", "phases"):  # the other ones choose among ids that end no row
        assert len({len(output) for output in expected}) > 2, "rows must end at different steps"
    chain = chain_of(row, client)
    with RemoteLogitsProcessor(chain, pad_token_id=PAD, eos_token_id=ENDS, client=client) as processor:
        outputs, reports = generate(processor, reference)
    assert outputs == expected
    if row == REPORT:
        check_reports(reports, [p + o for p, o in zip(prompts(VOCAB, reference), outputs, strict=True)], chain)


@pytest.fixture(scope="module")
def native_alone(model: Qwen2ForCausalLM) -> Callable[[str], list[list[int]]]:
    """The output with transformers' own kind of processor, one request after the other."""
    return cache(
        lambda reference: [
            model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                logits_processor=LogitsProcessorList([Native(reference)]),
                max_new_tokens=length,
                do_sample=False,
                eos_token_id=-1,
            )[0, len(prompt) :].tolist()
            for prompt, length in zip(prompts(VOCAB, reference), lengths(), strict=True)
        ]
    )


@pytest.mark.cell(engine="transformers continuous batching")
@every_row
def test_tokens_are_the_native_ones_in_continuous_batching(
    client: Client,
    model: Qwen2ForCausalLM,
    native_alone: Callable[[str], list[list[int]]],
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("transformers"))
    reference = reference_of(row)
    expected, given = native_alone(reference), prompts(VOCAB, reference)
    chain = chain_of(row, client)
    remote = continuous.RemoteLogitsProcessor(chain, client=client)
    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1)
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=48)
    manager = remote.attach(model.init_continuous_batching(config, small))
    manager.start()
    try:
        for place, (prompt, length) in enumerate(zip(given, lengths(), strict=True)):
            manager.add_request(prompt, request_id=str(place), max_new_tokens=length)
        ended: dict[str, Any] = {}
        while len(ended) < len(expected):
            output = manager.get_result(timeout=200)
            assert output is not None
            assert output.error is None
            if output.is_finished():
                ended[output.request_id] = output.generated_tokens
    finally:
        manager.stop()
        manager.destroy()
    outputs = [ended[str(place)] for place in range(len(expected))]
    assert outputs == expected
    if row == REPORT:
        reports = [remote.handles[str(place)].report.to_json() for place in range(len(expected))]
        check_reports(reports, [p + o for p, o in zip(given, outputs, strict=True)], chain)
