"""An operator's default chain, and a logitport server that stops and restarts."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.sglang import RemoteLogitProcessor
from tests.conftest import run_server
from tests.engines.sglang.conftest import PLAIN, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.engines.sglang.conftest import Engine

PROMPT = [20, 30, 40]
REMOTE = RemoteLogitProcessor.to_str()


def banning(*token_ids: int) -> dict[str, Any]:
    return {"logitport": [["disallowed_tokens", {"token_ids": list(token_ids)}]]}


@pytest.fixture(scope="module")
def logitport() -> Iterator[list[Any]]:
    """The running server, in a list so that it can be replaced."""
    with run_server() as running:
        yield [running]


@pytest.fixture(scope="module")
def engine(sglang: Callable[..., AbstractContextManager[Engine]], logitport: list[Any]) -> Iterator[Engine]:
    with sglang(
        PLAIN,
        "--enable-custom-logit-processor",
        LOGITPORT_TARGET=logitport[0].target,
        LOGITPORT_REQUEST_KEYS="mine",
        LOGITPORT_DEFAULT_PROCESSORS=json.dumps([["no_repeat_ngram", {"ngram_size": 1, "window_size": 200}]]),
    ) as engine:
        yield engine


def test_the_default_is_for_requests_that_name_no_processor(engine: Engine) -> None:
    ids = engine.generate(PROMPT)
    assert len(set(ids)) == len(ids) == 64
    banned = engine.generate(PROMPT, REMOTE, banning(ids[0]))
    assert ids[0] not in banned
    assert len(set(banned)) < 64
    assert engine.generate(PROMPT, REMOTE, {"logitport": []}) != ids


def test_a_key_that_is_not_permitted_is_refused(engine: Engine) -> None:
    """Also in the OpenAI endpoints. SGLang's own keys are permitted."""
    assert len(engine.generate(PROMPT, None, {"logitport": [], "thinking_budget": 9, "mine": 1})) == 64
    for processor in (None, REMOTE):
        with pytest.raises(Refused, match=r"custom_params has the key 'logitprot'.*write 'logitport'") as refused:
            engine.generate(PROMPT, processor, {"logitprot": []})
        assert refused.value.status == 400
    completion = {"model": "default", "prompt": "w20", "max_tokens": 2, "custom_params": {"logitprot": 1}}
    sent = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{engine.url}/v1/completions", json.dumps(completion).encode(), sent)
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=120)
    with failed.value:
        assert failed.value.code == 400
        assert "logitprot" in failed.value.read().decode()


def test_requests_fail_while_it_is_gone_and_the_engine_continues(engine: Engine, logitport: list[Any]) -> None:
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
