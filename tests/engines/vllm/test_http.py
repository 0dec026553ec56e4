"""The hook in vLLM's HTTP server, with the engine in a separate process: responses to clients."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.engines.vllm.chains import extra_args_of
from tests.engines.vllm.http import complete, post, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import RunningServer

FAILING = {"logitport": json.dumps(extra_args_of([("RaisesAfterOutputs", {"after": 3})])["logitport"])}
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
    variables = {"LOGITPORT_TARGET": own_server.target, "LOGITPORT_STEP_TIMEOUT_SECONDS": "30"}
    options = ("--middleware", "logitport.integrations.vllm.Middleware")
    with run_http_server(checkpoint, log / "vllm", variables, *options) as url:
        yield url


def test_a_chain_is_passed_as_json(url: str) -> None:
    status, answer = complete(url, vllm_xargs={"logitport": json.dumps(DENIED)}, ignore_eos=True)

    assert status == 200
    assert all(token_id not in range(2, 500) for token_id in answer["choices"][0]["token_ids"])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert complete(url)[1]["choices"][0]["token_ids"] != answer["choices"][0]["token_ids"]


def test_a_mistyped_key_is_logged(url: str, log: Path) -> None:
    status, answer = complete(url, vllm_xargs={"logitprot": json.dumps(DENIED)})
    assert status == 200
    assert "logitport" not in answer
    assert "the key 'logitprot' in extra_args" in (log / "vllm").read_text()


@pytest.mark.parametrize(
    ("chain", "message"),
    [("][", "not JSON"), ('[["nope"]]', "nope"), ('[["disallowed_tokens", {"token_ids": [600]}]]', "600")],
)
def test_an_invalid_chain_is_answered_with_400(url: str, chain: str, message: str) -> None:
    status, answer = complete(url, vllm_xargs={"logitport": chain})

    assert status == 400
    assert message in answer["error"]["message"]


THINKS = {"thinking_budget": 4, "thinking_start_ids": [7], "thinking_end_ids": [8, 9]}
REPORTING = {"logitport": json.dumps([["thinking_budget", THINKS], ["min_tokens", {"min_tokens": 1}]])}
REPORT = {
    "processors": [{"name": "thinking_budget"}, {"name": "min_tokens"}],
    "rows_applied": 12,
    "rows_skipped": 0,
    "skipped": [],
    "error": "",
    "failed_at": None,
    "events": [{"processor": "thinking_budget", "name": "budget_hit", "position": 4, "values": {"at": 4}}],
    "events_left_out": 0,
}


def test_openai_s_client_gets_the_reports_of_all_choices(url: str) -> None:
    """A prompt that thinks, and one that does not, with two samples each."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        greedy = {"vllm_xargs": REPORTING, "ignore_eos": True, "top_k": 1}  # vLLM refuses temperature 0 with n > 1
        options: Any = {"model": model, "max_tokens": 12, "extra_body": greedy}
        completion: Any = client.completions.create(prompt=[[5, 6, 7], [5, 6]], n=2, **options)
        quiet = REPORT | {"events": []}
        assert completion.logitport == [{"index": index, **(REPORT if index < 2 else quiet)} for index in range(4)]
        chat: Any = client.chat.completions.create(messages=[{"role": "user", "content": "w5 w6 w7"}], **options)
        assert chat.logitport == [{"index": 0, **REPORT}]
        chunks: list[Any] = list(client.completions.create(prompt=[5, 6, 7], stream=True, **options))
        assert chunks[-1].logitport == [{"index": 0, **REPORT}]
        assert chunks[-1].choices == []
        assert chunks[-1].id == chunks[0].id
        plain: Any = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=3)
        assert not hasattr(plain, "logitport")


def test_a_stop_string_ends_a_report(url: str) -> None:
    _, whole = complete(url, vllm_xargs=REPORTING, ignore_eos=True)
    stop = whole["choices"][0]["text"].split()[6]
    _, stopped = complete(url, vllm_xargs=REPORTING, ignore_eos=True, stop=[stop])
    assert stopped["logitport"][0]["rows_applied"] == len(stopped["choices"][0]["token_ids"]) < 12


@pytest.mark.parametrize("n", [1, 2])
def test_a_failure_is_answered_with_its_error(url: str, log: Path, n: int) -> None:
    """Even if nothing ends the request in vLLM."""
    logged, counted = failures_in_log(log), failed_in_metrics(url)

    status, answer = complete(url, vllm_xargs=FAILING, ignore_eos=True, n=n, temperature=1, max_tokens=200)

    assert status == 500
    assert answer["error"]["message"].startswith("logitport: ProcessorFailed: ")
    assert "on purpose" in answer["error"]["message"]
    assert failures_in_log(log) > logged
    assert failed_in_metrics(url) > counted
    assert complete(url)[0] == 200


def test_a_stream_ends_with_the_error(url: str) -> None:
    status, text = post(url, vllm_xargs=FAILING, stream=True)

    assert status == 200
    *begin, error, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert len(begin) == 3
    assert json.loads(error)["error"]["code"] == 500
    assert "on purpose" in json.loads(error)["error"]["message"]
    assert done == "[DONE]"


def test_refusals_of_streams_have_a_status_and_no_traceback(url: str, log: Path) -> None:
    logged = len((log / "vllm").read_text())
    for stream in (True, False):
        status, text = post(url, vllm_xargs={"logitport": '[["nope"]]'}, stream=stream)
        assert status == 400, text
        assert json.loads(text)["error"]["type"] == "BadRequestError"
        assert "NotFound" in json.loads(text)["error"]["message"]
    assert "Traceback" not in (log / "vllm").read_text()[logged:]


def test_slow_chains_delay_only_their_own_requests(url: str) -> None:
    chains = [extra_args_of([("SleepsInCheck", {"seconds": 6, "n": n})])["logitport"] for n in range(6)]
    begun, answers = time.monotonic(), []

    def slow(chain: Any) -> None:
        answers.append((*complete(url, vllm_xargs={"logitport": json.dumps(chain)}), time.monotonic() - begun))

    threads = [threading.Thread(target=slow, args=[chain]) for chain in chains]
    for thread in threads:
        thread.start()
    waits = []
    while len(answers) < len(chains):
        began = time.monotonic()
        assert complete(url, vllm_xargs={"logitport": json.dumps(DENIED)}, max_tokens=2)[0] == 200
        waits.append(time.monotonic() - began)
    for thread in threads:
        thread.join()

    assert max(waits) < 5, waits
    assert min(seconds for *_, seconds in answers) > 6
    # They wait for each other in the worker of their class, some of them for longer than the step timeout.
    assert {status for status, *_ in answers} <= {200, 400, 503}, answers


def failures_in_log(log: Path) -> int:
    return (log / "vllm").read_text().count("because its logitport chain failed: ProcessorFailed: ")


def failed_in_metrics(url: str) -> float:
    """Return the number of failed requests in vLLM's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.findall(r'logitport_failed_requests_total{error="ProcessorFailed"} (\S+)', answer.read().decode())
    return float(found[0]) if found else 0.0


def test_without_the_service_a_request_is_answered_with_503_and_vllm_continues(
    url: str, own_server: RunningServer
) -> None:
    """Stops the service, so it is the last test of this file."""
    known = {"logitport": json.dumps(DENIED)}
    assert complete(url, vllm_xargs=known)[0] == 200
    own_server.stop()

    fresh = complete(url, vllm_xargs={"logitport": '[["disallowed_tokens", {"token_ids": [9]}]]'})
    assert fresh[0] == 503, fresh
    status, answer = complete(url, vllm_xargs=known)  # accepted a moment ago: admitted, and ended at once
    assert status == 503, answer
    assert "ServerUnavailable" in answer["error"]["message"]
    assert complete(url)[0] == 200
