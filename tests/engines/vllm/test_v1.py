"""The hook in vLLM's real engine, first runner: with and without asynchronous scheduling, with scarce memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from tests.engines.checkpoint import EOS, VOCAB_SIZE
from tests.engines.vllm.chains import CHAINS, Chain, extra_args_of
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
    """Reads prompts in chunks of up to 32, and has memory for half of what eight requests need, so it preempts."""
    with running_engine(
        checkpoint,
        server.target,
        asynchronous=request.param,
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


def remote(chain: Chain, **options: Any) -> SamplingParams:
    defaults = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
    return SamplingParams(**defaults | options, extra_args=extra_args_of(chain))


def native(chain: Chain, **options: Any) -> SamplingParams:
    defaults = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
    return SamplingParams(**defaults | options, extra_args={"native": [list(entry) for entry in chain]})


def generate(engine: Any, given: list[list[int]], params: Any) -> list[Any]:
    inputs = [{"prompt_token_ids": ids} for ids in given]
    return [output.outputs for output in engine.generate(inputs, params, use_tqdm=False)]


def ids(outputs: list[Any]) -> list[list[int]]:
    return [list(sample.token_ids) for samples in outputs for sample in samples]


def test_tokens_equal_those_of_the_same_processors_in_vllm(engine: Any, failures: list[Any]) -> None:
    """Requests of one batch have their own chains or none, and lengths such that they come and go."""
    given = prompts(12)
    chains = [[*CHAINS.values(), []][place % (len(CHAINS) + 1)] for place in range(len(given))]
    lengths = [STEPS if place % 4 else STEPS // 4 for place in range(len(given))]
    both = list(zip(chains, lengths, strict=True))

    through_service = ids(generate(engine, given, [remote(chain, max_tokens=length) for chain, length in both]))
    in_vllm = ids(generate(engine, given, [native(chain, max_tokens=length) for chain, length in both]))

    assert through_service == in_vllm
    plain = ids(generate(engine, given, [native([], max_tokens=length) for length in lengths]))
    changed = [chain for chain, one, other in zip(chains, in_vllm, plain, strict=True) if one != other]
    assert all(chain in changed for chain in CHAINS.values()), "a processor changes nothing here"
    assert not failures


def test_state_survives_chunks_of_prompts_and_preemption(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    preempt, preempted = scheduler._preempt_request, []
    monkeypatch.setattr(
        scheduler, "_preempt_request", lambda *args, **kwargs: preempted.append(1) or preempt(*args, **kwargs)
    )
    build_step, waited = hook(engine)._build_step, []
    monkeypatch.setattr(
        hook(engine), "_build_step", lambda *args: (build_step(*args), waited.append(hook(engine)._waits_for_ids))
    )
    given = [[*prompt * 60][:60] for prompt in prompts(8)]

    outputs = ids(generate(engine, given, remote([("ForcesCallCount", {})])))

    assert preempted
    assert any(waited) is engine.llm_engine.vllm_config.scheduler_config.async_scheduling
    assert outputs == [list(range(101, 101 + STEPS))] * len(given)


def test_samples_of_one_prompt_are_requests_of_their_own(engine: Any) -> None:
    chain = [("no_repeat_ngram", {"ngram_size": 1, "window_size": STEPS}), *CHAINS["reads logits"]]

    (samples,) = generate(engine, [[5, 6, 7]], remote(chain, n=4, temperature=1.0, seed=3))

    outputs = [tuple(sample.token_ids) for sample in samples]
    assert len(set(outputs)) == 4
    assert all(len(set(output)) == STEPS for output in outputs)


def test_an_aborted_request_is_removed_and_the_others_continue(engine: Any) -> None:
    core, given = engine.llm_engine, prompts(4)
    names = [
        core.add_request(f"abort-{place}", {"prompt_token_ids": prompt}, remote(CHAINS["all"]))
        for place, prompt in enumerate(given)
    ]
    for _ in range(12):
        core.step()
    core.abort_request([names[1]], internal=True)
    outputs = {}
    while core.has_unfinished_requests():
        outputs |= {output.request_id: list(output.outputs[0].token_ids) for output in core.step() if output.finished}

    for place in (0, 2, 3):
        assert [outputs[f"abort-{place}"]] == ids(generate(engine, [given[place]], native(CHAINS["all"])))
    assert len(hook(engine)._batch._holder.session) == 0


def test_a_failing_processor_ends_only_its_request(engine: Any, failures: list[Any]) -> None:
    given = prompts(4)
    failing = remote([("RaisesAfterOutputs", {"after": 9})], ignore_eos=False)

    outputs = generate(engine, [[5, 6], *given], [failing, *[remote(CHAINS["all"])] * 4])

    (sample,) = outputs[0]
    assert sample.finish_reason == "error"
    assert sample.stop_reason.startswith("logitport: ProcessorFailed: ")
    assert len(sample.token_ids) in {9, 10}  # with asynchronous scheduling, before the forced id arrives
    assert ids(outputs[1:]) == ids(generate(engine, given, native(CHAINS["all"])))
    (failure,) = failures
    assert (failure.error, failure.output_length, failure.forced_token_id) == ("ProcessorFailed", 9, EOS)
    assert "on purpose" in failure.remote_traceback


@pytest.mark.parametrize("options", [{}, {"ignore_eos": False, "min_tokens": 20}])
def test_a_failed_request_ends_at_once(engine: Any, options: dict[str, Any]) -> None:
    """Also if no id ends it."""
    (samples,) = generate(engine, [[5, 6]], remote([("RaisesAfterOutputs", {"after": 3})], max_tokens=30, **options))

    assert len(samples[0].token_ids) in {3, 4}
    assert samples[0].finish_reason == "error"


def test_a_request_without_a_chain_gets_the_operators(engine: Any) -> None:
    chain = CHAINS["disallowed_tokens"]
    hook(engine)._default = chain
    try:
        by_default = ids(generate(engine, prompts(3), native([])))
    finally:
        hook(engine)._default = ()

    assert by_default == ids(generate(engine, prompts(3), remote(chain)))


def hook(engine: Any) -> Any:
    """Return the hook inside the engine."""
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return next(
        processor._hook for processor in worker.model_runner.input_batch.logitsprocs.all if hasattr(processor, "_hook")
    )
