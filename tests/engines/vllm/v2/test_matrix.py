"""Every dialect in vLLM's second runner, driven through its interface: eight requests in five slots, and drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import vllm
from vllm import SamplingParams

from logitport import Client
from tests.compatibility import effect
from tests.compatibility.matrix import every_dialect, lengths, prompts
from tests.engines.checkpoint import EOS, VOCAB_SIZE
from tests.engines.vllm.v2.driver import Runner, logits_of

if TYPE_CHECKING:
    from collections.abc import Callable


def expected(prompt: list[int], length: int) -> list[int]:
    """Return the ids of the same model with the effect in this process."""
    history = list(prompt)
    while len(history) < len(prompt) + length and history[-1] != EOS:
        history.append(int(effect.apply(history, logits_of(history)).argmax()))
    return history[len(prompt) :]


@pytest.mark.cell(engine="vLLM, second runner (V2)")
@pytest.mark.parametrize("drafts", [0, 3])
@every_dialect
def test_tokens_are_the_native_ones(
    target: str, drafts: int, dialect: str, record_property: Callable[[str, Any], None], failures: list[Any]
) -> None:
    record_property("version", f"{vllm.__version__}, by its interface")
    with Client(target) as client:
        ref = client.register(effect.DIALECTS[dialect])
    runner = Runner(5, drafts=drafts)
    params = SamplingParams(temperature=0.0, extra_args={"logitport": [[ref.digest, {}]]})
    sequences = [
        runner.submit(f"r{place}", prompt, params, length)
        for place, (prompt, length) in enumerate(zip(prompts(VOCAB_SIZE), lengths(), strict=True))
    ]
    runner.run()
    assert not failures
    for sequence in sequences:
        assert sequence.outputs[: sequence.length] == expected(sequence.prompt, sequence.length)
