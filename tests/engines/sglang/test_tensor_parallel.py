"""Two ranks, of which one calls the service: the same tokens as processors that run on both."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport_builtins import DeepseekOCRNoRepeatNGramLogitProcessor, RepetitionPenalty
from tests.engines.sglang.conftest import PLAIN, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine

PROMPTS = [[20, 30, 40], [50, 60], [70]]
REMOTE = RemoteLogitProcessor.to_str()
NGRAMS = {"ngram_size": 2, "window_size": 20}


class Roll(CustomLogitProcessor):
    """Reads logits: averages each id's logit with its neighbour's."""

    def __call__(self, logits, custom_param_list):
        import torch

        logits.add_(torch.roll(logits, 1, -1)).mul_(0.5)
        return logits


@pytest.fixture(scope="module")
def engine(sglang: Callable[..., AbstractContextManager[Engine]], server: RunningServer) -> Iterator[Engine]:
    """Without the guard, so that SGLang also runs processors itself."""
    with sglang(
        PLAIN,
        *("--enable-custom-logit-processor", "--tp-size", "2"),
        LOGITPORT_TARGET=server.target,
        LOGITPORT_SGLANG_GUARD="off",
        SGLANG_CPU_OMP_THREADS_BIND="0|1",
    ) as engine:
        yield engine


@pytest.mark.parametrize(
    ("native", "params", "processor"),
    [
        (DeepseekOCRNoRepeatNGramLogitProcessor.to_str(), NGRAMS, "no_repeat_ngram"),
        (Roll.to_str(), {}, Roll.to_str()),
        (
            RepetitionPenalty.to_str(),
            {"repetition_penalty": 1.8},
            "repetition_penalty",
        ),  # a program, which the first rank runs
    ],
)
def test_the_same_tokens(engine: Engine, native: str, params: dict[str, int], processor: str) -> None:
    expected = [engine.generate(prompt, native, params) for prompt in PROMPTS]
    custom = {"logitport": json.dumps([[processor, params]])}
    with ThreadPoolExecutor() as threads:
        got = list(threads.map(lambda prompt: engine.generate(prompt, REMOTE, custom), PROMPTS))
    assert got == expected
    assert got != [engine.generate(prompt) for prompt in PROMPTS]


def test_a_request_that_fails_ends_on_both_ranks(engine: Engine) -> None:
    with pytest.raises(Refused, match="UnknownProcessor"):
        engine.generate(PROMPTS[0], REMOTE, {"logitport": [["nonsense", {}]]})
    assert len(engine.generate(PROMPTS[0])) == 64
