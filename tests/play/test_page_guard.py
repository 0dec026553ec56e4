"""Access to the page: the token, the header Host, other origins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from logitport_play.web.page_guard import PageGuard, new_token

if TYPE_CHECKING:
    from tests.play.conftest import Client


def test_the_page_and_its_files(client: Client) -> None:
    kinds = {"": "text/html", "play.js": "text/javascript", "view.css": "text/css", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        status, body, headers = client.call("GET", client.path + name)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert body


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    assert client.host == "127.0.0.1"
    assert len(client.path.strip("/")) >= 43
    assert new_token() != new_token()


PATHS = ["/", "/api/state", "/play.js", "/wrong/api/state", "/wrong/", "//", "/%2e%2e/"]


@pytest.mark.parametrize("path", [*PATHS, "/{token}x/api/state", "/{cut}/api/state", "/{swapped}/api/state"])
def test_without_the_token_nothing_is_served(client: Client, path: str) -> None:
    token = client.path.strip("/")
    status, body, _ = client.call("GET", path.format(token=token, cut=token[:-1], swapped=token.swapcase()))
    assert status == 403
    assert b"token" in body


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        *(("Host", host, 403) for host in ("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "")),
        ("Host", "[::1]:{port}", 403),
        ("Host", "localhost:{port}", 400),
        *(("Origin", page, 403) for page in ("http://evil.example", "null", "http://127.0.0.1:1")),
        ("Origin", "https://127.0.0.1:{port}", 403),
        ("Origin", "http://127.0.0.1:{port}", 400),
    ],
)
def test_names_that_resolve_to_this_machine_and_other_pages_cannot_call(
    client: Client, header: str, value: str, status: int
) -> None:
    """An admitted call is refused by the application: it has no request."""
    headers = {header: value.format(port=client.port), "Content-Type": "application/json"}
    assert client.call("POST", f"{client.path}api/run", b"{}", headers)[0] == status


def test_no_cookies_and_strict_headers(client: Client) -> None:
    for path in (client.path, "/"):
        _, _, headers = client.call("GET", path)
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/my.py",
        "page/play.js",
        "my.py",
        "api/../my.py",
        "application.py",
        "/etc/passwd",
        "play.js/",
        "__init__.py",
    ],
)
def test_paths_do_not_reach_the_file_system(client: Client, path: str) -> None:
    status, body, _ = client.call("GET", client.path + path)
    assert status in (403, 404, 307)
    assert b"root:" not in body
    assert b"import" not in body


def test_methods(client: Client) -> None:
    assert client.call("GET", f"{client.path}api/run")[0] == 405
    assert client.call("POST", f"{client.path}api/state", b"")[0] == 405
    assert client.call("OPTIONS", f"{client.path}api/run")[0] == 405


def test_two_hosts_are_refused() -> None:
    async def never(*_: Any) -> None:
        raise AssertionError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    hosts = [(b"host", b"127.0.0.1:5"), (b"host", b"evil.example")]
    scope = {"type": "http", "method": "GET", "path": "/t/", "headers": hosts}
    asyncio.run(PageGuard(never, "t", 5)(scope, never, send))
    assert sent[0]["status"] == 403
    asyncio.run(PageGuard(never, "t", 5)({"type": "websocket"}, never, never))
