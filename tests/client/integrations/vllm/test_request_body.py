"""The middleware reads a request's body: vLLM ignores a chain that stands outside of `vllm_xargs`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from logitport.integrations.common import request_keys
from logitport.integrations.vllm import Middleware
from logitport.integrations.vllm.request_body import MAX_BYTES

CHAIN = [["no_repeat_ngram", {"ngram_size": 3}]]
JSON = [(b"Content-Type", b"application/json; charset=utf-8")]


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_keys, "_warned", set())


def serve(*parts: bytes, headers: list[tuple[bytes, bytes]] = JSON, ends: bool = True) -> tuple[bytes | None, Any]:
    """Return the body that the application receives, None if it is not called, and the error of the response."""
    messages: list[Any] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request"} if ends else {"type": "http.disconnect"})
    received: list[bytes] = []
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append(b"")
        more = True
        while more:
            message = await receive()
            received.append(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    scope = {"type": "http", "method": "POST", "headers": headers}
    asyncio.run(Middleware(app)(scope, receive, send))
    error = json.loads(sent[1]["body"])["error"] if sent[0]["status"] != 200 else None
    assert not messages or not received
    return b"".join(received) if received else None, error


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"logitport": CHAIN}, "logitport"),
        ({"logitport": None}, "logitport"),
        ({"extra_args": {"logitport": CHAIN}}, "extra_args.logitport"),
        ({"custom_params": {"logitport": CHAIN}}, "custom_params.logitport"),
        ({"vllm_xarg": {"logitport": "[]"}}, "vllm_xarg.logitport"),
        ({"extra_body": {"vllm_xargs": {"logitport": "[]"}}}, "extra_body.vllm_xargs.logitport"),
    ],
)
def test_a_chain_that_vllm_does_not_read_is_refused(body: dict[str, Any], where: str) -> None:
    received, error = serve(json.dumps({"model": "m", **body}).encode())
    assert received is None
    assert error["code"] == 400
    assert error["message"].startswith(f"logitport: InvalidArgument: the body has {where!r}")
    assert '"vllm_xargs": {"logitport": "' in error["message"]


@pytest.mark.parametrize("key", ["logitprot", "Logitport", "logit_port"])
def test_a_near_key_is_logged_once(key: str, caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"model": "m", key: CHAIN}).encode()
    for _ in range(3):
        assert serve(body[:9], body[9:]) == (body, None)
    (message,) = caplog.messages
    assert f"the key {key!r} in the body" in message
    assert "vllm_xargs" in message


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "vllm_xargs": {"logitport": "[]"}, "logit_bias": {"3": 1}, "logprobs": 3}',
        b'{"vllm_xargs": {"logitprot": "[]"}}',  # is checked as a key of extra_args
        b'{"messages": [{"role": "user", "content": "logitport"}], "metadata": {"a": {"logitport": 1}}}',
        b'["logitport"]',
        b'{"logitport": ',
        b"\xff",
        b"",
    ],
)
def test_other_bodies_pass_unchanged(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert serve(body) == (body, None)
    assert not caplog.messages


def test_bodies_without_json_and_long_ones_are_not_read() -> None:
    body = b'{"logitport": []}'
    assert serve(body, headers=[]) == (body, None)
    assert serve(body, headers=[(b"content-type", b"text/plain")]) == (body, None)
    long = body[:-1] + b" " * MAX_BYTES + b"}"
    parts = [long[begin : begin + 65536] for begin in range(0, len(long), 65536)]
    assert serve(*parts) == (long, None)


def test_a_client_that_disconnects_is_passed_on() -> None:
    assert serve(b'{"logitport": []', ends=False) == (b'{"logitport": []', None)
