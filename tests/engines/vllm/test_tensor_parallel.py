"""Two tensor-parallel ranks of the real engine, each a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm import failures
from tests.engines.checkpoint import EOS
from tests.engines.vllm.chains import CHAINS
from tests.engines.vllm.test_v1 import generate, ids, native, prompts, remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import RunningServer


def test_ranks_sample_the_same_and_fail_alike(
    running_engine: Callable[..., Any],
    checkpoint: Path,
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGITPORT_FAILURES", str(tmp_path / "failures.jsonl"))
    processors = ["logitport.integrations.vllm:RemoteLogitsProcessor", "tests.engines.vllm.native:Native"]
    with running_engine(checkpoint, server.target, tensor_parallel_size=2, logits_processors=processors) as engine:
        given = prompts(10)
        for chain in ("disallowed_tokens", "all"):
            through_service = ids(generate(engine, given, remote(CHAINS[chain], max_tokens=24)))
            assert through_service == ids(generate(engine, given, native(CHAINS[chain], max_tokens=24)))
        assert not failures()

        outputs = ids(generate(engine, [[5, 6]], remote([("RaisesAfterOutputs", {"after": 5})], ignore_eos=False)))

        assert outputs[0][5:] == [EOS]
        assert [(failure.error, failure.output_length) for failure in failures()] == [("ProcessorFailed", 5)]
