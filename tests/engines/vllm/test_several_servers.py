"""An engine with two servers, one of which is killed while requests are generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from tests.end_to_end.engines import busiest, kill, sessions_of
from tests.engines.vllm.chains import CHAINS, extra_args_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

STEPS, KILLED_AFTER = 48, 16
FOLLOWS_FROM_THE_HISTORY = ("disallowed_tokens", "no_repeat_ngram", "thinking_budget")
PROMPTS = [[20 + place, 30, 40 + 2 * place, 7] for place in range(6)]


@pytest.fixture
def cluster(start_server: Callable[..., RunningServer]) -> list[RunningServer]:
    return [start_server("--enable-custom-logit-processor") for _ in range(2)]


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def engine(
    request: pytest.FixtureRequest, running_engine: Callable[..., Any], checkpoint: Path, cluster: list[RunningServer]
) -> Iterator[Any]:
    targets = ",".join(server.target for server in cluster)
    with running_engine(checkpoint, targets, asynchronous=request.param, enable_prefix_caching=False) as running:
        yield running


def generate(engine: Any, then: Callable[[], object] = lambda: None) -> list[Any]:
    """Generate for all prompts, and do something in the middle. The processor of the last one reads logits."""
    core = engine.llm_engine
    kinds = [*FOLLOWS_FROM_THE_HISTORY, "reads logits"]
    for place, prompt in enumerate(PROMPTS):
        kind = kinds[-1] if place == len(PROMPTS) - 1 else kinds[place % len(FOLLOWS_FROM_THE_HISTORY)]
        chain = extra_args_of(CHAINS[kind])
        params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True, extra_args=chain)
        core.add_request(str(place), {"prompt_token_ids": prompt}, params)
    outputs: dict[str, Any] = {}
    steps = 0
    while core.has_unfinished_requests():
        outputs |= {output.request_id: output.outputs[0] for output in core.step() if output.finished}
        steps += 1
        if steps == KILLED_AFTER:
            then()
    return [outputs[str(place)] for place in range(len(PROMPTS))]


def test_a_server_is_killed(engine: Any, cluster: list[RunningServer], failures: list[Any]) -> None:
    undisturbed = generate(engine)

    def kill_the_one_in_use() -> None:
        killed = busiest(cluster)
        assert sessions_of(killed)[1] == len(PROMPTS)
        kill(killed)

    *others, reads_logits = generate(engine, kill_the_one_in_use)

    *expected, whole = undisturbed
    assert [list(output.token_ids) for output in others] == [list(output.token_ids) for output in expected]
    assert {output.finish_reason for output in (*others, *undisturbed)} == {"length"}
    # Its processor may have state that only the killed server had: it ends with an error, and its tokens are right.
    assert reads_logits.finish_reason == "error"
    assert reads_logits.stop_reason.startswith("logitport: StateLost: ")
    (failure,) = failures
    length = failure.output_length
    assert KILLED_AFTER - 2 <= length <= KILLED_AFTER + 2
    assert list(reads_logits.token_ids)[:length] == list(whole.token_ids)[:length]
