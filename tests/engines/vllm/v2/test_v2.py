"""The hook, driven through the real interface of vLLM's second runner."""

from __future__ import annotations

import random
from typing import Any

import pytest
import vllm
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from tests.engines.checkpoint import EOS, VOCAB_SIZE
from tests.engines.vllm.chains import CHAINS, Chain, extra_args_of, in_process
from tests.engines.vllm.v2.driver import PROCESSOR, Runner, config, logits_of

STEPS = 64

RUNNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "draft tokens": {"drafts": 3},
    "draft tokens, verified in parts": {"drafts": 3, "verify_at_once": 2},
}


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(count)
    return [[*(draw.randrange(20, VOCAB_SIZE) for _ in range(draw.randrange(1, 30))), 7] for _ in range(count)]


def remote(chain: Chain, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, extra_args=extra_args_of(chain), **options)


def expected(prompt: list[int], chain: Chain, length: int) -> list[int]:
    """Return the ids of the same model with the same processors in this process."""
    process, outputs = in_process(chain), []
    while len(outputs) < length and EOS not in outputs:
        row = process(prompt, outputs, logits_of([*prompt, *outputs]))
        outputs.append(int(row.argmax()))
    return outputs


def test_the_version_is_the_one_that_the_driver_was_written_for() -> None:
    assert vllm.__version__ == "0.33.0"


@pytest.mark.parametrize("runner", RUNNERS)
def test_tokens_equal_those_of_the_same_processors_in_process(runner: str, failures: list[Any]) -> None:
    """Requests of one batch have their own chains or none, and lengths such that they come and go."""
    driver = Runner(8, **RUNNERS[runner])
    chains = [*CHAINS.values(), []]
    sequences = [
        driver.submit(f"r{place}", prompt, remote(chains[place % len(chains)]), STEPS if place % 4 else STEPS // 4)
        for place, prompt in enumerate(prompts(36))
    ]

    driver.run()

    assert not failures
    assert driver.preemptions
    for place, sequence in enumerate(sequences):
        chain = chains[place % len(chains)]
        assert sequence.outputs[: sequence.length] == expected(sequence.prompt, chain, sequence.length)


def test_state_survives_chunks_of_prompts_and_preemption() -> None:
    driver = Runner(4, preempts=0.3)
    sequences = [
        driver.submit(f"r{place}", it, remote([("ForcesCallCount", {})]), STEPS) for place, it in enumerate(prompts(8))
    ]

    driver.run()

    assert driver.preemptions > 10
    assert [sequence.outputs for sequence in sequences] == [list(range(101, 101 + STEPS))] * len(sequences)


def test_a_failing_processor_ends_only_its_request(failures: list[Any]) -> None:
    driver = Runner(6, preempts=0.0)
    failing = driver.submit("failing", [5, 6], remote([("RaisesAfterOutputs", {"after": 9})]), STEPS)
    others = [driver.submit(f"r{place}", it, remote(CHAINS["all"]), STEPS) for place, it in enumerate(prompts(4))]

    driver.run()

    assert failing.outputs[9:] == [EOS]
    assert failing.outputs[:9] == expected([5, 6], [], 9)
    (failure,) = failures
    assert failure.request_id == "failing"
    assert (failure.error, failure.output_length, failure.forced_token_id) == ("ProcessorFailed", 9, EOS)
    assert "on purpose" in failure.remote_traceback
    for sequence in others:
        assert sequence.outputs == expected(sequence.prompt, CHAINS["all"], STEPS)


def test_ended_requests_are_removed_from_the_session() -> None:
    driver = Runner(4)
    for place, prompt in enumerate(prompts(10)):
        driver.submit(f"r{place}", prompt, remote(CHAINS["disallowed_tokens"]), 8)
    aborted = driver.submit("aborted", [5], remote(CHAINS["disallowed_tokens"]), STEPS)
    while not aborted.outputs:
        driver.step()
    driver.abort(aborted)

    driver.run()
    driver.step()

    assert len(driver.processor._hook._batch._holder.session) == 0


def test_a_request_without_a_chain_is_not_processed() -> None:
    driver = Runner(4)
    sequences = [
        driver.submit(f"r{place}", it, SamplingParams(temperature=0.0), STEPS) for place, it in enumerate(prompts(6))
    ]

    driver.run()

    assert not driver.needs
    assert driver.processor._hook._batch._holder.session is None
    for sequence in sequences:
        assert sequence.outputs == expected(sequence.prompt, [], STEPS)


def test_a_warm_up_without_requests_opens_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [5]}]]')
    driver = Runner(4)
    assert driver.processor.add_request(0, SamplingParams.for_sampler_warmup())

    driver.step()
    assert driver.processor._hook._batch._holder.session is None

    sequence = driver.submit("one", [5, 6], SamplingParams(temperature=0.0), STEPS)
    driver.run()

    assert sequence.outputs == expected([5, 6], [("disallowed_tokens", {"token_ids": [5]})], STEPS)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"logitport": "]["}, "not JSON"),
        ({"logitport": [3]}, "a list of"),
        ({"logitport": [["nope", {}]]}, "nope"),
        ({"logitport": [["disallowed_tokens", {"token_ids": "x"}]]}, "token_ids"),
    ],
)
def test_invalid_requests_are_refused_at_admission(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        Runner().submit("bad", [5], SamplingParams(extra_args=extra), STEPS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel_size": 2, "enable_batch_sharded_sampling": True}, "batch-sharded"),
    ],
)
def test_unsupported_configurations_are_refused_at_the_start(given: dict[str, Any], message: str) -> None:
    from logitport.integrations.vllm import RemoteLogitsProcessor

    with pytest.raises(ValueError, match=message):
        RemoteLogitsProcessor(config(**given), Runner(processor=PROCESSOR).req_states)
