"""A real MLX-LM with a tiny model, and a way to complete prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.engines.checkpoint import EOS, VOCAB_SIZE, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

NEW = 48


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Any]]:
    """Return a function that loads a tiny model with the weights of a seed, and its tokenizer."""
    import mlx_lm

    def make(seed: int = 0) -> tuple[Any, Any]:
        return mlx_lm.load(str(save_checkpoint(tmp_path_factory.mktemp("checkpoint"), seed=seed)))

    return make


@pytest.fixture(scope="session")
def loaded(load: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
    return load()


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Eight prompts of 3 to 24 ids; each opens a thinking block."""
    random = np.random.default_rng(0)
    return [[*random.integers(20, VOCAB_SIZE, 2 + 3 * n).tolist(), 7] for n in range(8)]


@pytest.fixture
def complete(loaded: tuple[Any, Any]) -> Callable[..., list[int]]:
    """Return the ids that the model generates greedily after a prompt, with some logits processors; no end id."""
    from mlx_lm import stream_generate

    def run(prompt: list[int], *processors: Any, length: int = NEW, pair: Any = loaded, **options: Any) -> list[int]:
        responses = stream_generate(
            *pair, prompt, max_tokens=length, logits_processors=list(processors) or None, **options
        )
        return [one.token for one in responses if one.token != EOS]

    return run
