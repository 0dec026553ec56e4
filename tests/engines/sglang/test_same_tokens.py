"""The same processors in SGLang and through logitport give the same greedy tokens, while requests start and end."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import logitport_builtins as builtins
from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.sglang.conftest import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine

REQUESTS, STEPS = 8, 64
START, END, NEWLINE = 10, 11, 12


class Budget(builtins.ThinkingBudgetLogitProcessor):
    """SGLang's own thinking budget, with ids of a small vocabulary."""

    THINKING_START_TOKEN_ID = START
    THINKING_END_TOKEN_ID = END
    NEW_LINE_TOKEN_ID = NEWLINE


class Shift(CustomLogitProcessor):
    """Reads logits: adds shifted logits, and a bias that follows from the history."""

    def __call__(self, logits, custom_param_list):
        import torch

        for row, params in enumerate(custom_param_list):
            request = params["__req__"]
            ids = [*request.origin_input_ids, *request.output_ids]
            logits[row] = logits[row] + params["weight"] * torch.roll(logits[row], len(ids))
            logits[row, ids[-params["window"] :]] -= 5.0
        return logits


class Count(CustomLogitProcessor):
    """Keeps state in its parameters: denies the likeliest id at every third call."""

    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            params["calls"] = params.get("calls", 0) + 1
            if params["calls"] % 3 == 0:
                logits[row, logits[row].argmax()] = -float("inf")
        return logits


def _random_bans(random: random.Random) -> dict[str, Any]:
    return {"token_ids": sorted(random.sample(range(2, VOCAB_SIZE), 300))}


def _ngrams(random: random.Random) -> dict[str, Any]:
    return {"ngram_size": random.randint(1, 3), "window_size": random.randint(5, 50)}


# SGLang's processor: logitport's processor, its parameters, and whether SGLang needs the same ones for all requests.
CASES = {
    "DisallowedTokensLogitsProcessor": ("disallowed_tokens", _random_bans, True),
    "DeepseekOCRNoRepeatNGramLogitProcessor": ("no_repeat_ngram", _ngrams, False),
    "Budget": (Budget.to_str(), lambda random: {"thinking_budget": random.randint(0, 20)}, False),
    "Shift": (Shift.to_str(), lambda random: {"weight": random.random(), "window": random.randint(1, 9)}, False),
    "Count": (Count.to_str(), lambda random: {}, False),
}


@pytest.fixture(scope="module")
def squeezed(sglang: Callable[..., AbstractContextManager[Engine]], server: RunningServer) -> Iterator[Engine]:
    """Without overlap; prompts are read in chunks, and requests are retracted every few steps."""
    with sglang(
        PLAIN,
        *("--enable-custom-logit-processor", "--disable-overlap-schedule"),
        *("--chunked-prefill-size", "8", "--max-total-tokens", "1024"),
        LOGITPORT_TARGET=server.target,
        SGLANG_TEST_RETRACT="1",
        SGLANG_TEST_RETRACT_INTERVAL="7",
    ) as engine:
        yield engine


@pytest.fixture(params=["guarded", "squeezed"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def _prompts() -> list[list[int]]:
    """Return prompts of different lengths; half of them share a prefix, and all open a thinking block."""
    source = random.Random(1)
    shared = [source.randrange(20, VOCAB_SIZE) for _ in range(16)]
    return [
        (shared if number % 2 else []) + [source.randrange(20, VOCAB_SIZE) for _ in range(3 + number)] + [START]
        for number in range(REQUESTS)
    ]


def _churn(engine: Engine, processor: str, custom: list[dict[str, Any]]) -> list[list[int]]:
    """Return the ids of each prompt. Requests start and end at different times, and one more request is aborted."""
    lengths = [STEPS if number % 2 else STEPS - 9 * number for number in range(REQUESTS)]

    def one(number: int) -> list[int]:
        time.sleep(0.03 * number)
        return engine.generate(_prompts()[number], processor, custom[number], max_new_tokens=lengths[number])

    def abort_one() -> None:
        with engine.post(_prompts()[0], processor, custom[0], stream=True, max_new_tokens=150) as response:
            response.read(100)

    with ThreadPoolExecutor(REQUESTS + 1) as threads:
        aborting = threads.submit(abort_one)
        ids = list(threads.map(one, range(REQUESTS)))
        aborting.result()
    assert [len(row) for row in ids] == lengths
    return ids


@pytest.fixture(scope="module")
def expected(native: Engine) -> Callable[[str], tuple[list[dict[str, Any]], list[list[int]]]]:
    """Return each request's parameters and the ids of SGLang's own run, by case; computed once."""
    known: dict[str, Any] = {}

    def of(case: str) -> tuple[list[dict[str, Any]], list[list[int]]]:
        if case not in known:
            _, make, same = CASES[case]
            source = random.Random(case)
            params = [make(source)] * REQUESTS if same else [make(source) for _ in range(REQUESTS)]
            cls = globals().get(case) or getattr(builtins, case)
            alone = [
                native.generate(prompt, cls.to_str(), custom, max_new_tokens=STEPS)
                for prompt, custom in zip(_prompts(), params, strict=True)
            ]
            known[case] = params, alone
        return known[case]

    return of


@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens(
    case: str, engine: Engine, native: Engine, expected: Callable[[str], tuple[list[dict[str, Any]], list[list[int]]]]
) -> None:
    params, alone = expected(case)
    requested = [{"logitport": [[CASES[case][0], custom]]} for custom in params]
    got = _churn(engine, RemoteLogitProcessor.to_str(), requested)
    assert got == [ids[: len(row)] for ids, row in zip(alone, got, strict=True)]
    plain = [native.generate(prompt, max_new_tokens=STEPS) for prompt in _prompts()]
    assert got != [ids[: len(row)] for ids, row in zip(plain, got, strict=True)], "the processor changes nothing here"


def test_requests_were_retracted_and_read_in_chunks(squeezed: Engine) -> None:
    """Check that the tests above covered both."""
    log = squeezed.log.read_text()
    assert "Testing retraction. #retracted_reqs: 1" in log
    assert "#new-token: 8," in log
