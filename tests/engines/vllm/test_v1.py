"""The hook in vLLM's real engine, first runner: with and without asynchronous scheduling, and short of memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from logitport.integrations.vllm import failures
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.vllm.chains import CHAINS, Chain, asked
from tests.engines.vllm.native import Native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

STEPS = 64


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def engine(
    request: pytest.FixtureRequest, running_engine: Callable[..., Any], checkpoint: Path, server: RunningServer
) -> Iterator[Any]:
    """Prompts are read in chunks of up to 32, and there is memory for half of what eight requests want: it preempts."""
    with running_engine(
        checkpoint,
        server.target,
        async_scheduling=request.param,
        max_num_batched_tokens=32,
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        block_size=32,
        num_gpu_blocks_override=14,
        logits_processors=["logitport.integrations.vllm:RemoteLogitsProcessor", Native],
    ) as running:
        assert running.llm_engine.vllm_config.scheduler_config.async_scheduling is request.param
        yield running


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    draw = random.Random(count)
    return [[*(draw.randrange(20, VOCAB_SIZE) for _ in range(draw.randrange(1, longest))), 7] for _ in range(count)]


def asking(chain: Chain, **options: Any) -> SamplingParams:
    defaults = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
    return SamplingParams(**defaults | options, extra_args=asked(chain))


def native(chain: Chain, **options: Any) -> SamplingParams:
    defaults = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
    return SamplingParams(**defaults | options, extra_args={"native": [list(link) for link in chain]})


def generate(engine: Any, given: list[list[int]], params: Any) -> list[Any]:
    inputs = [{"prompt_token_ids": ids} for ids in given]
    return [output.outputs for output in engine.generate(inputs, params, use_tqdm=False)]


def ids(outputs: list[Any]) -> list[list[int]]:
    return [list(sample.token_ids) for samples in outputs for sample in samples]


@pytest.mark.parametrize("chain", CHAINS)
def test_tokens_equal_those_of_the_same_processor_in_vllm(engine: Any, chain: str) -> None:
    given = prompts(12)
    lengths = [STEPS if place % 3 else STEPS // 4 for place in range(len(given))]  # so that requests come and go

    through_service = generate(engine, given, [asking(CHAINS[chain], max_tokens=length) for length in lengths])
    in_vllm = generate(engine, given, [native(CHAINS[chain], max_tokens=length) for length in lengths])

    assert ids(through_service) == ids(in_vllm)
    assert ids(through_service) != ids(generate(engine, given, [native([], max_tokens=length) for length in lengths]))
    assert not failures()


def test_requests_of_one_batch_have_their_own_chains_or_none(engine: Any) -> None:
    given = prompts(12)
    chains = [*CHAINS.values(), []]

    mixed = generate(engine, given, [asking(chains[place % len(chains)]) for place in range(len(given))])
    in_vllm = generate(engine, given, [native(chains[place % len(chains)]) for place in range(len(given))])

    assert ids(mixed) == ids(in_vllm)


def test_state_survives_chunks_of_prompts_and_preemption(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    preempt, preempted = scheduler._preempt_request, []
    monkeypatch.setattr(scheduler, "_preempt_request", lambda *told: (preempted.append(told), preempt(*told))[1])
    given = [[*prompt * 60][:60] for prompt in prompts(8)]

    outputs = ids(generate(engine, given, asking([("CountsCalls", {})])))

    assert preempted
    assert outputs == [list(range(101, 101 + STEPS))] * len(given)
