"""Two pipeline-parallel ranks of the real engine, each a process: the last one samples, and calls the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.engines.vllm.test_tensor_parallel import check_tokens_and_a_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_the_last_rank_processes_and_a_failed_request_ends_in_both(
    running_engine: Callable[..., Any],
    checkpoint: Path,
    server: RunningServer,
) -> None:
    processors = ["logitport.integrations.vllm:RemoteLogitsProcessor", "tests.engines.vllm.native:Native"]
    options: dict[str, Any] = {
        "pipeline_parallel_size": 2,
        "logits_processors": processors,
        # Without compilation, vLLM 0.32 on a CPU leaves out the run that makes the tensors between stages.
        "enforce_eager": False,
        "compilation_config": {"mode": 1, "backend": "eager"},
    }
    with running_engine(checkpoint, server.target, **options) as engine:
        check_tokens_and_a_failure(engine)
        check_tokens_and_a_failure(engine)  # the engine continues, and so does the session
