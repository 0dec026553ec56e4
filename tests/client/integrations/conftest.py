"""A small real model and a way to generate with it; numpy for MLX; a clock for the pauses of hooks after a failure."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport.session.connection.frame_channel import FrameChannel
from tests.clock import Clock
from tests.vllm_failures import failures  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import LogitsProcessor, Qwen2ForCausalLM

VOCAB_SIZE = 512
PAD, EOS = 0, 1
NEW = 20


@pytest.fixture
def mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make numpy arrays stand for those of MLX, which need not be installed."""
    package: Any = ModuleType("mlx")
    package.core = ModuleType("mlx.core")
    package.core.float32, package.core.float16, package.core.bfloat16 = np.float32, np.float16, "bfloat16"
    package.core.array = np.array
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", package.core)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    from transformers import Qwen2Config, Qwen2ForCausalLM  # takes seconds, and most tests of hooks need no model

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def prompts() -> torch.Tensor:
    """Three prompts, left-padded to different lengths; each opens a thinking block."""
    ids = torch.randint(20, VOCAB_SIZE, (3, 8), generator=torch.Generator().manual_seed(1))
    ids[1, :3] = PAD
    ids[2, :1] = PAD
    ids[:, -1] = 7
    return ids


@pytest.fixture
def generate(model: Qwen2ForCausalLM, prompts: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return the ids that the model generates, int64[rows, length], with some logits processors."""

    from transformers import LogitsProcessorList

    def run(*processors: LogitsProcessor, ids: torch.Tensor = prompts, **options: Any) -> torch.Tensor:
        torch.manual_seed(2)
        options = {"attention_mask": (ids != PAD).long(), "max_new_tokens": NEW, "min_new_tokens": NEW, **options}
        output = model.generate(ids, logits_processor=LogitsProcessorList(processors), **options)
        return output[:, ids.shape[1] :]

    return run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests load a class for the first time, which takes long on a busy machine."""
    monkeypatch.setattr("logitport.integrations.common.trials._MAX_ADMISSION_SECONDS", 120.0)
    monkeypatch.setattr("logitport.integrations.common.admission_time.MAX_SECONDS", 120.0)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The frames that admit and remove requests, and their numbers of requests."""
    recorded: list[tuple[str, int]] = []
    send = FrameChannel.send

    def record(channel: FrameChannel, frame: Any, *options: Any, **named: Any) -> None:
        if frame.HasField("add"):
            recorded.append(("add", len(frame.add.requests)))
        elif frame.HasField("remove"):
            recorded.append(("remove", len(frame.remove.slots) // 4))
        send(channel, frame, *options, **named)

    monkeypatch.setattr(FrameChannel, "send", record)
    return recorded


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of circuit breakers."""
    clock = Clock()
    monkeypatch.setattr("logitport.integrations.common.circuit_breaker.monotonic", clock)
    return clock
