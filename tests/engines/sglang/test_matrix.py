"""Every dialect in SGLang: eight concurrent requests that end one by one, with the overlap schedule on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.compatibility import effect
from tests.compatibility.matrix import every_dialect, lengths, prompts
from tests.engines.checkpoint import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine


def generate(engine: Engine, processor: str, custom: Any) -> list[list[int]]:
    """Return the ids of eight concurrent requests."""
    with ThreadPoolExecutor(8) as threads:
        futures = [
            threads.submit(engine.generate, prompt, processor, custom, max_new_tokens=length)
            for prompt, length in zip(prompts(VOCAB_SIZE), lengths(), strict=True)
        ]
        return [future.result() for future in futures]


@pytest.fixture(scope="module")
def expected(native: Engine) -> list[list[int]]:
    """The output of SGLang with its own kind of processor."""
    return generate(native, effect.SGLang.to_str(), {})


@pytest.mark.cell(engine="SGLang")
@every_dialect
def test_tokens_are_the_native_ones(
    server: RunningServer,
    guarded: Engine,
    expected: list[list[int]],
    dialect: str,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("version", version("sglang"))
    with Client(server.target) as client:
        ref = client.register(effect.DIALECTS[dialect])
    custom = {"logitport": [[ref.digest, {}]]}
    assert generate(guarded, RemoteLogitProcessor.to_str(), custom) == expected
