"""Two tensor-parallel ranks of the real engine, each a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.engines.checkpoint import EOS
from tests.engines.vllm.chains import CHAINS
from tests.engines.vllm.test_v1 import generate, ids, native, prompts, remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_ranks_sample_the_same_and_fail_alike(
    running_engine: Callable[..., Any],
    checkpoint: Path,
    server: RunningServer,
) -> None:
    processors = ["logitport.integrations.vllm:RemoteLogitsProcessor", "tests.engines.vllm.native:Native"]
    with running_engine(checkpoint, server.target, tensor_parallel_size=2, logits_processors=processors) as engine:
        check_tokens_and_a_failure(engine)


def check_tokens_and_a_failure(engine: Any) -> None:
    """Compare the tokens of chains with those of the same processors in vLLM, and see a failed request end."""
    given = prompts(10)
    for chain in ("disallowed_tokens", "all"):
        through_service = ids(generate(engine, given, remote(CHAINS[chain], max_tokens=24)))
        assert through_service == ids(generate(engine, given, native(CHAINS[chain], max_tokens=24)))

    failing = remote([("RaisesAfterOutputs", {"after": 5})], ignore_eos=False)
    ((sample,),) = generate(engine, [[5, 6]], failing)

    assert list(sample.token_ids)[5:] == [EOS]
    assert sample.finish_reason == "error"
    assert sample.stop_reason.startswith("logitport: ProcessorFailed: ")
