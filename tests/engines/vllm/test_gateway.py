"""vLLM's HTTP server behind a gateway: what its clients may name, and their tenants, which this service requires."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.vllm.chains import SHIPPED
from tests.engines.vllm.http import complete, post, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


DENIED = json.dumps([["disallowed_tokens", {"token_ids": list(range(2, 500))}]])
ACME = {"X-Logitport-Tenant": "acme"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway") / "vllm"


@pytest.fixture(scope="module")
def url(checkpoint: Path, serving: Callable[..., Any], log: Path) -> Iterator[str]:
    """The address of a vLLM server with the middleware, and with the default of what requests may name."""
    variables = {"LOGITPORT_REQUEST_PROCESSORS": "", "LOGITPORT_STEP_TIMEOUT_SECONDS": "200"}
    middleware = ("--middleware", "logitport.integrations.vllm.Middleware")
    with serving("--enable-custom-logit-processor", "--require-tenant") as service:
        variables["LOGITPORT_TARGET"] = service.target
        with run_http_server(checkpoint, log, variables, *middleware) as url:
            yield url


@pytest.mark.parametrize("n", [1, 2])
def test_the_gateways_header_is_the_tenant(url: str, n: int) -> None:
    status, answer = complete(url, ACME, vllm_xargs={"logitport": DENIED}, ignore_eos=True, n=n, temperature=1)

    assert status == 200, answer
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "length"
        assert not set(choice["token_ids"]) & set(range(2, 500))


@pytest.mark.parametrize("forged", [{}, {"logitport_tenant": "acme"}])
def test_a_client_cannot_choose_a_tenant(url: str, forged: dict[str, str]) -> None:
    status, answer = complete(url, vllm_xargs={"logitport": DENIED} | forged)

    assert status == 400
    assert "--require-tenant" in answer["error"]["message"]


def test_a_repeated_header_is_refused(url: str) -> None:
    import http.client

    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/v1/completions")
    for value in ("acme", "other"):
        connection.putheader("X-Logitport-Tenant", value)
    connection.endheaders()
    answer = connection.getresponse()

    assert answer.status == 400
    assert "overwrite" in json.load(answer)["error"]["message"]
    connection.close()


def test_requests_ship_nothing_by_default(url: str) -> None:
    chain = json.dumps([[SHIPPED["TiltByLastId"], {"by": 4.0}]])

    status, text = post(url, ACME, vllm_xargs={"logitport": chain})

    assert status == 400
    message = json.loads(text)["error"]["message"]
    assert "is a shipped processor" in message
    assert "'shipped' to LOGITPORT_REQUEST_PROCESSORS" in message
