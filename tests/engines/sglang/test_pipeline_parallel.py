"""Two stages of a pipeline, of which the last one calls the service: the same tokens, and failures end in both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.sglang.conftest import PLAIN, Refused
from tests.engines.sglang.test_requests import FailsLater
from tests.engines.sglang.test_tensor_parallel import CASES, PROMPTS, REMOTE, check_the_same_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine

OPTIONS = ("--enable-custom-logit-processor", "--pp-size", "2")
CORES = "0|1"


@pytest.fixture(scope="module")
def expected(sglang: Callable[..., AbstractContextManager[Engine]]) -> list[list[Any]]:
    """The tokens for each of CASES from two stages without logitport, where SGLang runs the processors itself."""
    with sglang(PLAIN, *OPTIONS, SGLANG_CPU_OMP_THREADS_BIND=CORES) as engine:
        return [[engine.generate(prompt, native, params) for prompt in PROMPTS] for native, params, _ in CASES]


@pytest.fixture(scope="module")
def engine(
    expected: list[list[Any]],  # its engine has ended
    sglang: Callable[..., AbstractContextManager[Engine]],
    server: RunningServer,
) -> Iterator[Engine]:
    with sglang(PLAIN, *OPTIONS, LOGITPORT_TARGET=server.target, SGLANG_CPU_OMP_THREADS_BIND=CORES) as engine:
        yield engine


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_same_tokens(engine: Engine, expected: list[list[Any]], case: int) -> None:
    check_the_same_tokens(engine, expected, case)


def test_a_request_that_fails_ends_in_both_stages(engine: Engine, expected: list[list[Any]]) -> None:
    """Without an end id: only the failure ends it."""
    custom = {"logitport": json.dumps([[FailsLater.to_str(), {}]])}
    with pytest.raises(Refused, match="five are enough"):
        engine.generate(PROMPTS[0], REMOTE, custom)
    check_the_same_tokens(engine, expected, 0)


def test_the_report_reaches_the_caller(engine: Engine) -> None:
    """The first stage answers, and the last one has the report."""
    thinking = {"thinking_budget": 9, "thinking_start_ids": [PROMPTS[0][-1]], "thinking_end_ids": [11]}
    answer = engine.answer(PROMPTS[0], REMOTE, {"logitport": json.dumps([["thinking_budget", thinking]])})
    report = answer["meta_info"]["logitport"]
    assert report["rows_applied"] == len(answer["output_ids"]) == 64
    assert [(event["name"], event["position"]) for event in report["events"]] == [("budget_hit", 9)]
    assert "logitport" not in engine.answer(PROMPTS[0])["meta_info"]
