"""The HTTP pages of `--metrics-listen`: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from prometheus_client import Histogram, disable_created_metrics, make_wsgi_app, start_http_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Thread
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry

_BEAT_SECONDS = 0.25
# A step of installed processors may occupy the event loop for a while. Longer than this, the loop hangs.
_MAX_SILENCE_SECONDS = 30.0
# A probe would wait longer than this for an answer of the loop.
_RESPONSE_SECONDS = 3.0
# The text of /readyz if the event loop runs, and the server accepts no calls.
NOT_READY = "not ready"
_NOT_ALIVE = "not alive"
# Seconds. Below one millisecond, the loop is idle.
_LAG_BUCKETS = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Heartbeat:
    """Measures how late the event loop runs what is due, and knows whether it runs at all.

    Args:
        registry: gets the histogram `logitport_event_loop_lag_seconds`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last = time.monotonic()
        self._lag = Histogram(
            "logitport_event_loop_lag_seconds",
            "Seconds by which the event loop runs late what is due, sampled four times a second",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )

    async def beat(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
            self._last = time.monotonic()
            self._lag.observe(max(0.0, self._last - began - _BEAT_SECONDS))

    def is_alive(self) -> bool:
        """Whether the event loop has run within the last 30 s. Called on any thread."""
        return time.monotonic() - self._last < _MAX_SILENCE_SECONDS

    def is_responsive(self) -> bool:
        """Whether the event loop has run within the last 3 s. Called on any thread."""
        return time.monotonic() - self._last < _RESPONSE_SECONDS


class StatusPages:
    """The pages, which are served until `close`.

    Attributes:
        port: the port on which they are served.
    """

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self.port = int(server.server_port)
        self._server, self._thread = server, thread

    def close(self) -> None:
        """End the pages. Waits for half a second at most, and for the pages that are being sent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def listen(
    address: str,
    registry: CollectorRegistry,
    *,
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
    is_responsive: Callable[[], bool] = lambda: True,
) -> StatusPages:
    """Serve the pages over HTTP.

    Args:
        address: HOST:PORT; port 0 selects a free port.
        registry: what /metrics shows, as does the page /.
        is_alive: whether /healthz answers 200, not 503.
        is_ready: whether /readyz answers 200, not 503 with the text `NOT_READY`.
        is_responsive: if not, /readyz answers 503 with another text.

    Raises:
        OSError: the address is taken.
    """
    # Without a second series for each counter, which no dashboard reads.
    disable_created_metrics()  # type: ignore[no-untyped-call] # not annotated
    metrics = make_wsgi_app(registry)
    # Each returns the reason of a 503, or nothing.
    checks: dict[str, Callable[[], str]] = {
        "/healthz": lambda: "" if is_alive() else _NOT_ALIVE,
        "/readyz": lambda: _NOT_ALIVE if not is_responsive() else "" if is_ready() else NOT_READY,
    }

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in ("/", "/metrics"):
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        check = checks.get(path)
        if check is None:
            status, text = "404 Not Found", f"no page here; there are /metrics, {', '.join(checks)}"
        elif reason := check():
            status, text = "503 Service Unavailable", reason
        else:
            status, text = "200 OK", "ok"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [text.encode() + b"\n"]

    host, _, port = address.rpartition(":")
    server, thread = start_http_server(int(port), host.strip("[]"), registry)
    server.set_app(answer)
    return StatusPages(server, thread)
