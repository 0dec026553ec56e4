"""Every dialect in llama.cpp: eight completions one after the other, as llama-cpp-python makes them."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport.integrations.llama_cpp import RemoteLogitsProcessor
from tests.compatibility import effect
from tests.compatibility.matrix import every_dialect, lengths, prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from logitport import Client

VOCAB_SIZE = 512
# Ids that have no word in the tests' vocabulary, or that end a completion.
NO_WORDS = [0, 1, 2]


def native(input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
    """The effect as llama-cpp-python's own kind of processor."""
    processed = effect.apply(input_ids.tolist(), np.array(scores))
    processed[NO_WORDS] = -np.inf
    return processed


@pytest.mark.cell(engine="llama.cpp")
@every_dialect
def test_tokens_are_the_native_ones(
    client: Client, complete: Callable[..., list[int]], dialect: str, record_property: Callable[[str, Any], None]
) -> None:
    record_property("version", f"llama-cpp-python {version('llama-cpp-python')}")
    ref = client.register(effect.DIALECTS[dialect])
    remote = RemoteLogitsProcessor([(ref, {}), ("disallowed_tokens", {"token_ids": NO_WORDS})], client=client)
    for prompt, length in zip(prompts(VOCAB_SIZE), lengths(), strict=True):
        assert complete(prompt, remote, length=length) == complete(prompt, native, length=length)
