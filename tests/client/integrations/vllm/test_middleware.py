"""The middleware holds the start of a stream: an error of the hook becomes a status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from logitport.integrations.vllm import Middleware


def respond(content_type: str, *bodies: bytes) -> list[Any]:
    """Return what a client gets from an application that sends this."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    asyncio.run(Middleware(app)({"type": "http", "headers": []}, None, send))  # type: ignore[arg-type]
    return sent


def event(message: str, kind: str = "BadRequestError", code: int = 400) -> bytes:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return b"data: " + json.dumps({"error": error}, separators=(",", ":")).encode() + b"\n\n"


STREAM = "text/event-stream; charset=utf-8"


def test_a_stream_that_begins_with_an_error_of_the_hook_gets_its_status() -> None:
    start, body = respond(STREAM, event("logitport: NotFound: no"), b"data: [DONE]\n\n")
    assert start["status"] == 400
    assert (b"content-type", b"application/json") in start["headers"]
    assert json.loads(body["body"])["error"]["message"] == "logitport: NotFound: no"


@pytest.mark.parametrize(
    ("content_type", "bodies"),
    [
        (STREAM, [b'data: {"choices": []}\n\n', event("logitport: late")]),
        (STREAM, [event("another error")]),
        (STREAM, [b'data: {"error" nonsense\n\n']),
        (STREAM, [b'data: {"error": 3}\n\n']),
        (STREAM, []),
        ("application/json", [event("logitport: x")]),
    ],
)
def test_other_responses_pass_unchanged(content_type: str, bodies: list[bytes]) -> None:
    sent = respond(content_type, *bodies)
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * (len(bodies) + 1)]
    assert sent[0]["status"] == 200
    assert b"".join(message.get("body", b"") for message in sent) == b"".join(bodies)
