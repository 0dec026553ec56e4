"""What a caller of SGLang's server sees: of what it asks, of what fails, and of a logitport server that goes away."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.conftest import run_server
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.sglang.conftest import PLAIN, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.engines.sglang.conftest import Engine

PROMPT = [20, 30, 40]
REMOTE = RemoteLogitProcessor.to_str()


class FailsLater(CustomLogitProcessor):
    """Raises as soon as the output has a few tokens."""

    def __call__(self, logits, custom_param_list):
        for params in custom_param_list:
            if len(params["__req__"].output_ids) >= 5:
                raise ValueError("five are enough")
        return logits


def banning(*token_ids: int) -> dict[str, Any]:
    return {"logitport": [["disallowed_tokens", {"token_ids": list(token_ids)}]]}


def test_samples_of_one_request(guarded: Engine) -> None:
    """n=3 is three requests with a state of their own."""
    bigrams = {"logitport": [["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]]}
    answers = guarded.answer(PROMPT, REMOTE, bigrams, n=3, temperature=5.0)
    rows = [answer["output_ids"] for answer in answers]
    assert len({tuple(row) for row in rows}) == 3
    for row in rows:
        assert len(set(row)) == len(row) == 64
        assert not set(row) & set(PROMPT)


def test_a_batch_in_one_call_and_a_chain_as_text(guarded: Engine) -> None:
    alone = guarded.generate(PROMPT, REMOTE, banning(7))
    assert guarded.generate(PROMPT, REMOTE, {"logitport": json.dumps(banning(7)["logitport"])}) == alone
    rows = guarded.answer([PROMPT, PROMPT], REMOTE, banning(7))  # type: ignore[list-item]
    assert [row["output_ids"] for row in rows] == [alone, alone]


@pytest.mark.parametrize(
    ("custom", "why"),
    [
        ({"logitport": [["nonsense", {}]]}, "UnknownProcessor: no built-in is called 'nonsense'"),
        ({"logitport": 7}, "a list of [processor, parameters] is wanted"),
        ({"logitport": "[["}, "not JSON"),
        (banning(VOCAB_SIZE), "InvalidTokenId"),
        (banning(*range(VOCAB_SIZE)), "deny every id"),
    ],
)
def test_what_is_wrong_with_a_request(guarded: Engine, custom: Any, why: str) -> None:
    with pytest.raises(Refused) as refused:
        guarded.generate(PROMPT, REMOTE, custom)
    assert refused.value.status == 400
    assert why in str(refused.value)
    assert len(guarded.generate(PROMPT)) == 64


def test_beam_search_is_refused(guarded: Engine) -> None:
    with pytest.raises(Refused, match="beam search"):
        guarded.generate(PROMPT, REMOTE, banning(7), beam_width=2)


def test_a_processor_that_raises_ends_its_own_request(guarded: Engine) -> None:
    fine: list[Any] = []
    beside = threading.Thread(target=lambda: fine.append(guarded.generate(PROMPT, REMOTE, banning(7))))
    beside.start()
    with pytest.raises(Refused) as refused:
        guarded.generate(PROMPT, REMOTE, {"logitport": [[FailsLater.to_str(), {}]]})
    beside.join()
    assert refused.value.status == 400
    assert "ProcessorFailed" in str(refused.value)
    assert "five are enough" in str(refused.value)
    assert fine == [guarded.generate(PROMPT, REMOTE, banning(7))]


def test_a_stream_tells_why_it_ends(guarded: Engine) -> None:
    with guarded.post(PROMPT, REMOTE, {"logitport": [[FailsLater.to_str(), {}]]}, stream=True) as response:
        chunks = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
    reason = chunks[-1]["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert "five are enough" in reason["message"]


def test_streams_that_are_given_up(guarded: Engine) -> None:
    for _ in range(10):
        with guarded.post(PROMPT, REMOTE, banning(7), stream=True, max_new_tokens=200) as response:
            response.read(10)
    assert len(guarded.generate(PROMPT, REMOTE, banning(7))) == 64


class TestAnOperatorsDefault:
    """And a logitport server that goes away: both take an engine of their own."""

    @pytest.fixture(scope="class")
    def logitport(self) -> Iterator[list[Any]]:
        """The server that runs, as one thing in a list, to be replaced."""
        with run_server() as running:
            yield [running]

    @pytest.fixture(scope="class")
    def engine(self, sglang: Callable[..., AbstractContextManager[Engine]], logitport: list[Any]) -> Iterator[Engine]:
        with sglang(
            PLAIN,
            "--enable-custom-logit-processor",
            LOGITPORT_TARGET=logitport[0].target,
            LOGITPORT_DEFAULT_PROCESSORS=json.dumps([["no_repeat_ngram", {"ngram_size": 1, "window_size": 200}]]),
        ) as engine:
            yield engine

    def test_it_is_for_those_who_ask_nothing(self, engine: Engine) -> None:
        ids = engine.generate(PROMPT)
        assert len(set(ids)) == len(ids) == 64
        asking = engine.generate(PROMPT, REMOTE, banning(ids[0]))
        assert ids[0] not in asking
        assert len(set(asking)) < 64
        assert engine.generate(PROMPT, REMOTE, {"logitport": []}) != ids

    def test_requests_fail_while_it_is_gone_and_the_engine_lives_on(self, engine: Engine, logitport: list[Any]) -> None:
        before = engine.generate(PROMPT, REMOTE, banning(7))
        port = logitport[0].target.rpartition(":")[2]
        logitport[0].process.kill()
        logitport[0].process.wait()
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                engine.generate(PROMPT, REMOTE, banning(7))
            assert refused.value.status == 503
            assert "ServerUnavailable" in str(refused.value)
        assert time.monotonic() - began < 20
        assert len(engine.generate(PROMPT, REMOTE, {"logitport": []})) == 64
        with run_server("--listen", f"127.0.0.1:{port}"):
            deadline = time.monotonic() + 60
            while True:
                try:
                    after = engine.generate(PROMPT, REMOTE, banning(7))
                except Refused:
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
                else:
                    break
        assert after == before
