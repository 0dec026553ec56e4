"""A real llama.cpp with a tiny model, and a way to complete prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llama_cpp import Llama

NEW = 64


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engines.llama_cpp.checkpoint import save_gguf  # needs a package that only this environment has

    return save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def load(gguf: Path) -> Callable[..., Llama]:
    from llama_cpp import Llama

    def make(**options: Any) -> Llama:
        return Llama(str(gguf), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **options)

    return make


@pytest.fixture(scope="session")
def model(load: Callable[..., Llama]) -> Iterator[Llama]:
    loaded = load()
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Eight prompts of 3 to 24 ids; each opens a thinking block."""
    random = np.random.default_rng(0)
    return [[*random.integers(20, 512, 2 + 3 * n).tolist(), 7] for n in range(8)]


@pytest.fixture
def complete(model: Llama) -> Callable[..., list[int]]:
    """Return the ids that a model generates greedily after a prompt, with some logits processors."""
    from llama_cpp import LogitsProcessorList

    from tests.engines.llama_cpp.checkpoint import ids_of

    def run(prompt: list[int], *processors: Any, llm: Llama = model, length: int = NEW, **options: Any) -> list[int]:
        completion = llm.create_completion(
            prompt,
            max_tokens=length,
            temperature=0.0,
            logits_processor=LogitsProcessorList(processors) if processors else None,
            **options,
        )
        return ids_of(completion["choices"][0]["text"])

    return run
