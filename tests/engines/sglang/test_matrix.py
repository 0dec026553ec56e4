"""Every row in SGLang: eight concurrent requests that end one by one, with the overlap schedule on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.compatibility.matrix import (
    REFERENCES,
    REPORT,
    chain_of,
    check_reports,
    every_row,
    lengths,
    prompts,
    reference_of,
)
from tests.engines.checkpoint import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine


class Reference(CustomLogitProcessor):
    """A reference as SGLang's own kind of processor."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list or (), strict=True):
            req = params["__req__"]
            REFERENCES[params["reference"]]([*req.origin_input_ids, *req.output_ids], row)
        return logits


def generate(engine: Engine, processor: str, custom: Any, reference: str) -> list[Any]:
    """Return the responses to eight concurrent requests."""
    with ThreadPoolExecutor(8) as threads:
        futures = [
            threads.submit(engine.answer, prompt, processor, custom, max_new_tokens=length)
            for prompt, length in zip(prompts(VOCAB_SIZE, reference), lengths(), strict=True)
        ]
        return [future.result() for future in futures]


@pytest.fixture(scope="module")
def expected(native: Engine) -> Callable[[str], list[list[int]]]:
    """The output of SGLang with its own kind of processor."""
    serialized = Reference.to_str()

    @cache
    def run(reference: str) -> list[list[int]]:
        return [each["output_ids"] for each in generate(native, serialized, {"reference": reference}, reference)]

    return run


@pytest.mark.cell(engine="SGLang")
@every_row
def test_tokens_are_the_native_ones(
    server: RunningServer,
    guarded: Engine,
    expected: Callable[[str], list[list[int]]],
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("sglang"))
    reference = reference_of(row)
    with Client(server.target) as client:
        chain = chain_of(row, client)
    responses = generate(guarded, RemoteLogitProcessor.to_str(), {"logitport": chain}, reference)
    outputs = [each["output_ids"] for each in responses]
    assert outputs == expected(reference)
    if row == REPORT:
        histories = [p + o for p, o in zip(prompts(VOCAB_SIZE, reference), outputs, strict=True)]
        check_reports([each["meta_info"]["logitport"] for each in responses], histories, chain)
