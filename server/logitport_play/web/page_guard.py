"""Accepts only requests of the page that this process has opened."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOSTS = ("127.0.0.1", "localhost")
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),  # the address has the token
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def new_token() -> str:
    """A random token of 256 bits, for addresses."""
    return secrets.token_urlsafe(32)


class PageGuard:
    """Requires the token as the first part of each path, and a header `Host` with the address of this server.

    The token stops other users and programs of this machine, and other pages of the browser. The header stops names
    that resolve to this machine (DNS rebinding). There are no cookies.

    Args:
        application: gets the accepted requests, with the token as `root_path`.
        token: of the addresses.
        port: of the server.
    """

    def __init__(self, application: ASGIApp, token: str, port: int) -> None:
        self._application = application
        self._prefix = f"/{token}"
        self._hosts = frozenset(f"{host}:{port}" for host in _HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no WebSockets
            return
        problem = self._problem(scope)
        if problem:
            await PlainTextResponse(problem, 403)(scope, receive, _with_headers(send))
            return
        await self._application({**scope, "root_path": self._prefix}, receive, _with_headers(send))

    def _problem(self, scope: Scope) -> str:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return "the header Host is not the address of this server; open the address that logitport play printed\n"
        first = scope["path"].partition("/")[2].partition("/")[0]
        if not hmac.compare_digest(f"/{first}".encode(), self._prefix.encode()):
            return "the token is missing or wrong; open the address that logitport play printed\n"
        origins = {value for name, value in headers if name == b"origin"}
        if not origins <= {f"http://{hosts[0]}"}:
            return "the request comes from another page\n"
        return ""


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return send_with_headers
