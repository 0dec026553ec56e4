"""Every row in SGLang: eight concurrent requests that end one by one, with the overlap schedule on, or with drafts."""

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
from tests.engines.sglang.conftest import MAX_DRAFTS

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
    chain = registered(server, row)
    responses = run_row(guarded, row, chain, expected)
    if row == REPORT:
        check_row_reports(responses, chain, [each["output_ids"] for each in responses])


@pytest.mark.cell(engine="SGLang, speculating")
@every_row
def test_tokens_are_the_native_ones_where_drafts_are_verified(
    server: RunningServer,
    drafting: Engine,
    expected: Callable[[str], list[list[int]]],
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    """The second time, SGLang drafts the outputs of the first time."""
    record_property("version", f"{version('sglang')}, NGRAM")
    chain = registered(server, row)
    run_row(drafting, row, chain, expected)
    responses = run_row(drafting, row, chain, expected)
    assert all(each["meta_info"]["spec_num_correct_drafts"] > 0 for each in responses)
    if row == REPORT:
        # The session does not know which drafts of the last step were accepted: of its rows, the first one counts.
        counts = [each["meta_info"]["logitport"]["rows_applied"] for each in responses]
        outputs = [each["output_ids"] for each in responses]
        assert all(0 <= len(output) - count <= MAX_DRAFTS for output, count in zip(outputs, counts, strict=True))
        check_row_reports(responses, chain, [output[:count] for output, count in zip(outputs, counts, strict=True)])


def registered(server: RunningServer, row: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the chain of a row, with its classes registered."""
    with Client(server.target) as client:
        return chain_of(row, client)


def run_row(engine: Engine, row: str, chain: Any, expected: Callable[[str], list[list[int]]]) -> list[Any]:
    """Return the responses to the requests of a row, whose ids are the expected ones."""
    reference = reference_of(row)
    responses = generate(engine, RemoteLogitProcessor.to_str(), {"logitport": chain}, reference)
    assert [each["output_ids"] for each in responses] == expected(reference)
    return responses


def check_row_reports(responses: list[Any], chain: list[tuple[str, dict[str, Any]]], outputs: list[list[int]]) -> None:
    """Compare the reports with those of the reference for these outputs."""
    histories = [p + o for p, o in zip(prompts(VOCAB_SIZE, REPORT), outputs, strict=True)]
    check_reports([each["meta_info"]["logitport"] for each in responses], histories, chain)
