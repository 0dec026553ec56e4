"""A checkpoint that the tests of every engine share (`server` is in tests/conftest.py)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


# Each engine has an environment of its own, and its tests import it.
collect_ignore = [engine for engine in ("llama_cpp", "mlx_lm", "sglang", "vllm") if find_spec(engine) is None]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, and its tokenizer."""
    from tests.engines.checkpoint import save_checkpoint  # needs torch and transformers, which some environments lack

    return save_checkpoint(tmp_path_factory.mktemp("checkpoint"))
