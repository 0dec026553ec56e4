"""A real vLLM engine on the CPU, in this process, so that tests can see how it calls its processors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.vllm_failures import failures  # noqa: F401 - a fixture

os.environ.update(
    HF_HUB_OFFLINE="1",
    LOGITPORT_REQUEST_PROCESSORS="builtin,registered,shipped",
    LOGITPORT_STEP_TIMEOUT_SECONDS="200",  # as `patient` below
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

PROCESSOR = "logitport.integrations.vllm:RemoteLogitsProcessor"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests load a class for the first time, which takes long on a busy machine."""
    monkeypatch.setattr("logitport.integrations.common.trials._MAX_ADMISSION_SECONDS", 120.0)
    monkeypatch.setattr("logitport.integrations.common.admission_time.MAX_SECONDS", 120.0)


@contextmanager
def run_engine(checkpoint: Path, target: str | None, *, asynchronous: bool = False, **options: Any) -> Iterator[Any]:
    """Run an `LLM` that calls the service at `target`; without LOGITPORT_TARGET if it is None.

    Asynchronous scheduling is off by default on CPUs, where it gains nothing; it calls processors as on a GPU.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.platforms.cpu import CpuPlatform

    from logitport.integrations.common.trials import Trials
    from logitport.integrations.vllm import request_trials

    configure = CpuPlatform.check_and_update_config

    def configure_asynchronous(config: Any) -> None:
        configure(config)
        config.scheduler_config.async_scheduling = asynchronous

    request_trials.trials = Trials()  # another engine's front end is another process
    os.environ.pop("LOGITPORT_TARGET", None)
    if target is not None:
        os.environ["LOGITPORT_TARGET"] = target
    defaults = {
        "enforce_eager": True,
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "logits_processors": [PROCESSOR],
        "seed": 0,
    }
    CpuPlatform.check_and_update_config = staticmethod(configure_asynchronous)
    try:
        engine = LLM(str(checkpoint), **defaults | options)
    finally:
        CpuPlatform.check_and_update_config = configure
    try:
        yield engine
    finally:
        engine.llm_engine.engine_core.shutdown()
        del engine
        cleanup_dist_env_and_memory()
        os.environ.pop("LOGITPORT_TARGET", None)


@pytest.fixture(scope="session")
def running_engine() -> Callable[..., AbstractContextManager[Any]]:
    """Return `run_engine`, for fixtures of other scopes."""
    return run_engine
