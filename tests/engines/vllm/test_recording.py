"""vLLM records through the environment, and the recording replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from tests.engines import recordings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer

LENGTH = 16
PROMPTS = [[20, 30, 40], [21, 31, 41, 51, 61], [22]]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_a_recording_replays(
    running_engine: Callable[..., Any],
    checkpoint: Path,
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asynchronous: bool,
) -> None:
    path = tmp_path / "engine.lprec"
    for name, value in recordings.variables(path).items():
        monkeypatch.setenv(name, value)
    with running_engine(checkpoint, server.target, asynchronous=asynchronous) as engine:

        def generated(name: str, params: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
            sampling = SamplingParams(
                temperature=0.0, max_tokens=LENGTH, ignore_eos=True, extra_args={"logitport": [[name, params]]}
            )
            inputs = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
            outputs = engine.generate(inputs, sampling, use_tqdm=False)
            return [(prompt, list(one.outputs[0].token_ids)) for prompt, one in zip(PROMPTS, outputs, strict=True)]

        edited = generated(*recordings.EDITS)
        processor, params = recordings.READS
        read = generated(processor.to_str(), params)
    recordings.check(path, edited, read)
