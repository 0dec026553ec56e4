"""Adds the reports of requests to the JSON of vLLM's responses."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from logitport.integrations.common.chains import KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from logitport.integrations.vllm.response_reports import ResponseReports

    # Of ASGI.
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

_LAST_EVENT = b"data: [DONE]"
# Of a chunk, for the one with the reports.
_COPIED = ("id", "object", "created", "model")


class BodyWithReports:
    """Sends the messages of a response, with the reports that were collected until its end.

    A JSON object gets a further key and another content-length. A stream gets a last chunk without choices, before its
    end. Other responses, and those without reports, are sent as they are.

    Args:
        send: sends a message of ASGI.
        reports: filled while vLLM makes the response.
    """

    def __init__(self, send: Send, reports: ResponseReports) -> None:
        self._send = send
        self._reports = reports
        self._streams = False
        self._start: Message | None = None  # held until the body is complete
        self._body: list[bytes] = []
        self._first_event = b""

    async def __call__(self, message: Message) -> None:
        """Send a message of ASGI."""
        if message["type"] == "http.response.start":
            kind = header(message, b"content-type")
            self._streams = kind.startswith(b"text/event-stream")
            is_object = kind.startswith(b"application/json") and message["status"] == HTTPStatus.OK
            if is_object and self._reports.to_json():
                self._start = message
                return
        elif self._start is not None:
            self._body.append(message.get("body", b""))
            if message.get("more_body"):
                return
            start, self._start = self._start, None
            body = self._completed(b"".join(self._body))
            await self._send({**start, "headers": _with_length(start, len(body))})
            message = {**message, "body": body}
        elif self._streams:
            message = self._with_last_chunk(message)
        await self._send(message)

    def _completed(self, body: bytes) -> bytes:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return body
        if not isinstance(answer, dict):
            return body
        return orjson.dumps({**answer, KEY: self._reports.to_json()})

    def _with_last_chunk(self, message: Message) -> Message:
        body: bytes = message.get("body", b"")
        if not self._first_event and body.startswith(b"data: {"):
            self._first_event = body
        end = (b"\n" + body).find(b"\n" + _LAST_EVENT)  # where a line begins: a model may write the same text
        if end < 0 or not (reports := self._reports.to_json()):
            return message
        try:
            first = orjson.loads(self._first_event.removeprefix(b"data: ").partition(b"\n")[0])
        except orjson.JSONDecodeError:
            return message
        chunk = {name: first[name] for name in _COPIED if name in first} | {"choices": [], KEY: reports}
        return {**message, "body": body[:end] + b"data: " + orjson.dumps(chunk) + b"\n\n" + body[end:]}


def header(source: Mapping[str, Any], name: bytes) -> bytes:
    """Return the first header of this name, in lower case, of a scope or the start of a response; b"" without one."""
    return next((bytes(value) for key, value in source.get("headers", ()) if key.lower() == name), b"")


def _with_length(start: Message, length: int) -> list[tuple[bytes, bytes]]:
    others = [(key, value) for key, value in start.get("headers", ()) if key.lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]
