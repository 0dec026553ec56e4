"""Two ranks, of which one calls the service: the same tokens as processors that run on both."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

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


CASES = [
    (DeepseekOCRNoRepeatNGramLogitProcessor.to_str(), NGRAMS, "no_repeat_ngram"),
    (Roll.to_str(), {}, Roll.to_str()),
    # A program, which the first rank runs.
    (RepetitionPenalty.to_str(), {"repetition_penalty": 1.8}, "repetition_penalty"),
]
OPTIONS = ("--enable-custom-logit-processor", "--tp-size", "2")
CORES = "0|1"


@pytest.fixture(scope="module")
def expected(sglang: Callable[..., AbstractContextManager[Engine]]) -> list[list[Any]]:
    """The tokens for each of CASES from two ranks without logitport, where SGLang runs the processors itself."""
    with sglang(PLAIN, *OPTIONS, "--disable-overlap-schedule", SGLANG_CPU_OMP_THREADS_BIND=CORES) as engine:
        return [[engine.generate(prompt, native, params) for prompt in PROMPTS] for native, params, _ in CASES]


@pytest.fixture(scope="module")
def engine(
    expected: list[list[Any]],  # its engine has ended
    sglang: Callable[..., AbstractContextManager[Engine]],
    server: RunningServer,
) -> Iterator[Engine]:
    variables = {"LOGITPORT_TARGET": server.target, "SGLANG_CPU_OMP_THREADS_BIND": CORES}
    with sglang(PLAIN, *OPTIONS, **variables) as engine:
        yield engine


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_same_tokens(engine: Engine, expected: list[list[Any]], case: int) -> None:
    check_the_same_tokens(engine, expected, case)


def check_the_same_tokens(engine: Engine, expected: list[list[Any]], case: int) -> None:
    """Compare the tokens of one of CASES with those of SGLang's own processors."""
    _, params, processor = CASES[case]
    custom = {"logitport": json.dumps([[processor, params]])}
    with ThreadPoolExecutor() as threads:
        got = list(threads.map(lambda prompt: engine.generate(prompt, REMOTE, custom), PROMPTS))
    assert got == expected[case]
    assert got != [engine.generate(prompt) for prompt in PROMPTS]


def test_a_request_that_fails_ends_on_both_ranks(engine: Engine) -> None:
    with pytest.raises(Refused, match="NotFound"):
        engine.generate(PROMPTS[0], REMOTE, {"logitport": [["nonsense", {}]]})
    assert len(engine.generate(PROMPTS[0])) == 64
