"""The hook in vLLM's HTTP server, with the engine in a separate process: responses to clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from logitport.integrations.vllm import failures
from tests.engines.checkpoint import EOS
from tests.engines.vllm.chains import extra_args_of
from tests.engines.vllm.http import complete, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import RunningServer

DENIED = [["disallowed_tokens", {"token_ids": list(range(2, 500))}]]


@pytest.fixture(scope="module")
def own_server(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A service that a test may stop."""
    with serving("--enable-custom-logit-processor") as running:
        yield running


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def url(checkpoint: Path, own_server: RunningServer, log: Path) -> Iterator[str]:
    """The address of a vLLM server."""
    variables = {"LOGITPORT_TARGET": own_server.target, "LOGITPORT_FAILURES": str(log / "failures.jsonl")}
    with run_http_server(checkpoint, log / "vllm", variables) as url:
        yield url


def test_a_chain_is_passed_as_json(url: str) -> None:
    status, answer = complete(url, vllm_xargs={"logitport": json.dumps(DENIED)}, ignore_eos=True)

    assert status == 200
    assert all(token_id not in range(2, 500) for token_id in answer["choices"][0]["token_ids"])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert complete(url)[1]["choices"][0]["token_ids"] != answer["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("chain", "message"),
    [("][", "not JSON"), ('[["nope"]]', "nope"), ('[["disallowed_tokens", {"token_ids": [600]}]]', "600")],
)
def test_an_invalid_chain_is_answered_with_400(url: str, chain: str, message: str) -> None:
    status, answer = complete(url, vllm_xargs={"logitport": chain})

    assert status == 400
    assert message in answer["error"]["message"]


def test_a_failure_is_in_the_stop_reason_and_in_the_record(
    url: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_FAILURES", str(log / "failures.jsonl"))
    failing = {"logitport": json.dumps(extra_args_of([("RaisesAfterOutputs", {"after": 3})])["logitport"])}

    plain = complete(url, vllm_xargs=failing)[1]
    reported = complete(url, vllm_xargs=failing | {"logitport_failure_id": 401}, stop_token_ids=[401])[1]

    assert (plain["choices"][0]["finish_reason"], plain["choices"][0]["stop_reason"]) == ("stop", None)
    assert plain["choices"][0]["token_ids"][3:] == [EOS]
    assert (reported["choices"][0]["finish_reason"], reported["choices"][0]["stop_reason"]) == ("stop", 401)
    for answer in (plain, reported):
        (failure,) = failures(answer["id"])
        assert (failure.error, failure.output_length) == ("ProcessorFailed", 3)
        assert "on purpose" in failure.remote_traceback


def test_without_the_service_a_request_is_answered_with_503_and_vllm_continues(
    url: str, own_server: RunningServer
) -> None:
    """Stops the service, so it is the last test of this file."""
    known = {"logitport": json.dumps(DENIED)}
    assert complete(url, vllm_xargs=known)[0] == 200
    own_server.stop()

    fresh = complete(url, vllm_xargs={"logitport": '[["disallowed_tokens", {"token_ids": [9]}]]'})
    assert fresh[0] == 503
    status, answer = complete(url, vllm_xargs=known)  # accepted a moment ago: admitted, and ended at once
    assert (status, answer["choices"][0]["token_ids"]) == (200, [EOS])
    assert complete(url)[0] == 200
