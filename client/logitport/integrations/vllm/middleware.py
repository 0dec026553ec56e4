"""An ASGI middleware for vLLM's HTTP server: `vllm serve --middleware logitport.integrations.vllm.Middleware`."""

from __future__ import annotations

from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common.tenants import headers_of
from logitport.integrations.vllm.request_body import checked
from logitport.integrations.vllm.response_body import BodyWithReports, header
from logitport.integrations.vllm.response_reports import ResponseReports, response
from logitport.integrations.vllm.responses import PREFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from logitport.integrations.vllm.response_body import Message, Receive, Send

    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# The headers of the request that this context serves. Tasks inherit it.
_headers: ContextVar[Mapping[str, str] | None] = ContextVar("logitport_headers", default=None)


def current_headers() -> Mapping[str, str]:
    """Return the headers of the HTTP request that is being served; {} without one, or without the middleware."""
    return _headers.get() or {}


class Middleware:
    """Checks a request's body, shows the hook its headers, and completes responses.

    A body with a chain that vLLM would ignore is answered with status 400.
    A stream that begins with an error of the hook is answered with its status. A response to requests with chains gets
    their reports, under the key "logitport".

    Args:
        app: the application that it wraps.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            receive = await checked(scope, receive)
            token = _headers.set(headers_of(scope["headers"]))
        except InvalidArgument as error:
            message = f"{PREFIX}{type(error).__name__}: {error}"
            await _answer(send, {"message": message, "type": "BadRequestError", "param": None, "code": 400})
            return
        reports = ResponseReports()
        reports_token = response.set(reports)
        try:
            await self._app(scope, receive, _StreamStart(BodyWithReports(send, reports)))
        finally:
            response.reset(reports_token)
            _headers.reset(token)


class _StreamStart:
    """Sends the messages of a response. Holds the start of a stream until its first event is known.

    vLLM starts a stream with status 200 before it checks the request's chain.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: Message | None = None
        self._answered = False
        self._streams = False

    async def __call__(self, message: Message) -> None:
        """Send a message of ASGI."""
        if self._answered:
            return
        if message["type"] == "http.response.start" and _is_stream(message):
            self._held = message
            self._streams = True
            return
        held, self._held = self._held, None
        if held is not None:
            error = _error_in(message.get("body", b""))
            if error is not None:
                self._answered = True
                await _answer(self._send, error)
                return
            await self._send(held)
        await self._send(_with_type(message) if self._streams else message)


def _is_stream(start: Message) -> bool:
    return header(start, b"content-type").startswith(b"text/event-stream")


def _error_in(event: bytes) -> dict[str, Any] | None:
    """Return the hook's error that this event of a stream holds; None for other events."""
    if not event.startswith(_ERROR_EVENT):
        return None
    try:
        error = orjson.loads(event.removeprefix(b"data: ").partition(b"\n")[0])["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not isinstance(error, dict) or not str(error.get("message", "")).startswith(PREFIX):
        return None
    if error.get("code") == HTTPStatus.BAD_REQUEST:
        error["type"] = "BadRequestError"  # as without a stream; vLLM 0.32 writes InternalServerError into streams
    return error


def _with_type(message: Message) -> Message:
    """Return an event of a stream that has begun; an error of the hook gets the type that fits its code."""
    event, end, rest = message.get("body", b"").partition(b"\n")
    error = _error_in(event)
    if error is None:
        return message
    return {**message, "body": b"data: " + orjson.dumps({"error": error}) + end + rest}


_ERROR_EVENT = b'data: {"error"'


async def _answer(send: Send, error: Mapping[str, Any]) -> None:
    """Answer with an error, in the form of vLLM's errors. Its status is the error's code."""
    body = orjson.dumps({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": int(error["code"]), "headers": headers})
    await send({"type": "http.response.body", "body": body})
