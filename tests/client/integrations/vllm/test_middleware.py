"""The middleware holds the start of a stream: an error of the hook becomes a status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from logitport.integrations.vllm import Middleware
from logitport.integrations.vllm.response_reports import response


def respond(content_type: str, *bodies: bytes, report: dict[str, Any] | None = None, status: int = 200) -> list[Any]:
    """Return what a client gets from an application that sends this, with a report before the last part."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", content_type.encode()), (b"Content-Length", b"%d" % sum(map(len, bodies)))]
        if report is not None:
            response.get().add(0, report)  # type: ignore[union-attr]
        await send({"type": "http.response.start", "status": status, "headers": headers})
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


REPORT = {"processors": [{"name": "thinking_budget"}], "rows_applied": 3}


def test_a_json_object_gets_the_reports_and_another_length() -> None:
    parts = b'{"id": "cmpl-1", ', b'"choices": [{"text": "\xc3\xa9"}]}'
    start, body = respond("application/json", *parts, report=REPORT)
    answer = json.loads(body["body"])
    assert answer == {"id": "cmpl-1", "choices": [{"text": "é"}], "logitport": [{"index": 0, **REPORT}]}
    lengths = [value for name, value in start["headers"] if name.lower() == b"content-length"]
    assert lengths == [str(len(body["body"])).encode()]


@pytest.mark.parametrize(
    ("content_type", "status", "body"),
    [
        ("application/json", 400, b'{"error": {}}'),
        ("application/json", 200, b"[]"),
        ("application/json", 200, b"{"),
        ("text/plain", 200, b"{}"),
        (STREAM, 200, b'data: {"id": "cmpl-1"}\n\n'),
        (STREAM, 200, b"data: [DONE]\n\n"),
    ],
)
def test_responses_that_cannot_hold_reports_pass_unchanged(content_type: str, status: int, body: bytes) -> None:
    start, *sent = respond(content_type, body, report=REPORT, status=status)
    assert start["status"] == status
    assert b"".join(message.get("body", b"") for message in sent) == body


def test_a_stream_gets_a_last_chunk() -> None:
    first = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    events = [
        b"data: " + json.dumps(first | {"choices": [{"delta": {"content": "a"}}]}).encode() + b"\n\n",
        b'data: {"choices": []}\n\n',
        b"data: [DONE]\n\n",
    ]
    sent = respond(STREAM, *events, report=REPORT)
    lines = b"".join(message.get("body", b"") for message in sent[1:]).split(b"\n\n")
    assert lines[:2] == [event.strip() for event in events[:2]]
    assert json.loads(lines[2].removeprefix(b"data: ")) == {
        **first,
        "choices": [],
        "logitport": [{"index": 0, **REPORT}],
    }
    assert lines[3] == b"data: [DONE]"


def test_a_text_that_looks_like_the_end_of_a_stream_stays_in_its_chunk() -> None:
    texts = ["data: [DONE]", "a\ndata: [DONE]"]
    events = [b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n" for text in texts]
    sent = respond(STREAM, *events, events[0] + b"data: [DONE]\n\n", report=REPORT)
    lines = b"".join(message.get("body", b"") for message in sent[1:]).strip().split(b"\n\n")
    assert [line + b"\n\n" for line in lines[:3]] == [*events, events[0]]
    assert json.loads(lines[3].removeprefix(b"data: "))["logitport"] == [{"index": 0, **REPORT}]
    assert lines[4:] == [b"data: [DONE]"]


def test_an_invalid_header_is_answered_with_the_name_of_the_error() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    twice = [(b"x-logitport-tenant", b"a"), (b"x-logitport-tenant", b"b")]
    asyncio.run(Middleware(None)({"type": "http", "headers": twice}, None, send))  # type: ignore[arg-type]
    assert json.loads(sent[1]["body"])["error"]["message"].startswith("logitport: InvalidArgument: ")
