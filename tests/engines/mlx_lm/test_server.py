"""What docs/engines/mlx-lm.md states about MLX-LM's server. If a test fails, change that page."""

from __future__ import annotations

from typing import Any

import pytest


class Failing:
    """Fails at its second step."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, tokens: Any, logits: Any) -> Any:
        self.steps += 1
        if self.steps == 2:
            raise ValueError("a processor of one request")
        return logits


def test_an_exception_of_one_request_ends_the_step_of_all(loaded: Any) -> None:
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(loaded[0], max_tokens=8)
    generator.insert([[20, 21], [30, 31]], logits_processors=[[Failing()], []])
    with pytest.raises(ValueError, match="of one request"):
        list(iter(generator.next, None))


def test_a_request_reaches_the_makers_of_processors_without_its_body() -> None:
    from dataclasses import fields

    from mlx_lm import server

    assert [one.name for one in fields(server.LogitsProcessorArguments)] == [
        "logit_bias",
        "repetition_penalty",
        "repetition_context_size",
        "presence_penalty",
        "presence_context_size",
        "frequency_penalty",
        "frequency_context_size",
    ]
    assert "entry_points" not in vars(server)
