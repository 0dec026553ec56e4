"""An ASGI middleware for vLLM's HTTP server: `vllm serve --middleware logitport.integrations.vllm.Middleware`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common.tenants import headers_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# The headers of the request that this context serves. Tasks inherit it.
_headers: ContextVar[Mapping[str, str] | None] = ContextVar("logitport_headers", default=None)


def current_headers() -> Mapping[str, str]:
    """Return the headers of the HTTP request that is being served; {} without one, or without the middleware."""
    return _headers.get() or {}


class Middleware:
    """Shows the hook a request's headers, from which it reads the tenant.

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
            token = _headers.set(headers_of(scope["headers"]))
        except InvalidArgument as error:
            await _refuse(send, str(error))
            return
        try:
            await self._app(scope, receive, send)
        finally:
            _headers.reset(token)


async def _refuse(send: Send, message: str) -> None:
    """Answer with status 400, in the form of vLLM's errors."""
    error = {"message": f"logitport: {message}", "type": "BadRequestError", "param": None, "code": 400}
    body = orjson.dumps({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
