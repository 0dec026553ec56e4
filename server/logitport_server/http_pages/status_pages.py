"""The HTTP pages of `--metrics-listen`: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import Histogram, disable_created_metrics, make_wsgi_app

from logitport_server.http_pages.bounded_http import TIMEOUT_SECONDS, BoundedHTTPServer
from logitport_server.lifecycle import service_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

_BEAT_SECONDS = 0.25
# A step of installed processors may occupy the event loop for a while. Longer than this, the loop hangs.
MAX_SILENCE_SECONDS = 30.0
# A probe gives up after this time.
_RESPONSE_SECONDS = 3.0
# Seconds. Below one millisecond, the loop is idle.
_LAG_BUCKETS = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Health(Enum):
    """The health of a server, and the text of its page /readyz."""

    SERVING = "ok"
    NOT_SERVING = "not ready"  # it answers, and accepts no sessions
    SILENT = "not alive"  # it does not answer, or its event loop does not run


class Heartbeat:
    """Measures how late the event loop runs what is due, and knows whether it runs at all.

    Args:
        registry: gets the histogram `logitport_event_loop_lag_seconds`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # When the loop has run last; None before `beat` begins: a long start is no hang.
        self._last: float | None = None
        self._lag = Histogram(
            "logitport_event_loop_lag_seconds",
            "Seconds by which the event loop runs late what is due, sampled four times a second",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )

    async def beat(self) -> None:
        """Measure until cancelled."""
        self._last = time.monotonic()
        while True:
            began = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
            self._last = time.monotonic()
            self._lag.observe(max(0.0, self._last - began - _BEAT_SECONDS))
            service_manager.notify("WATCHDOG=1")

    def is_alive(self) -> bool:
        """Whether the event loop has run within the last 30 s, or `beat` has not begun. Called on any thread."""
        return self._has_run_within(MAX_SILENCE_SECONDS)

    def is_responsive(self) -> bool:
        """Whether the event loop has run within the last 3 s, or `beat` has not begun. Called on any thread."""
        return self._has_run_within(_RESPONSE_SECONDS)

    def _has_run_within(self, seconds: float) -> bool:
        return self._last is None or time.monotonic() - self._last < seconds


class StatusPages:
    """The pages, which are served until `close`.

    Attributes:
        port: the port that serves them.
    """

    def __init__(self, server: _Server) -> None:
        self.port = int(server.server_port)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="logitport-pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the pages. Waits for half a second at most."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def listen(
    address: str,
    registry: CollectorRegistry,
    *,
    health: Callable[[], Health],
    is_alive: Callable[[], bool] = lambda: True,
    refresh: Callable[[], object] = lambda: None,
) -> StatusPages:
    """Serve the pages over HTTP.

    Args:
        address: HOST:PORT; port 0 selects a free port.
        registry: what /metrics shows, as does the page /.
        health: what /readyz answers: 200, or 503 if the server is not serving.
        is_alive: whether /healthz answers 200, not 503.
        refresh: called before /metrics is shown, on the thread of the request.

    Raises:
        OSError: the address is taken.
    """
    # Without a second series for each counter, which no dashboard reads.
    disable_created_metrics()  # type: ignore[no-untyped-call] # not annotated
    metrics = make_wsgi_app(registry)
    checks = {"/healthz": lambda: Health.SERVING if is_alive() else Health.SILENT, "/readyz": health}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in ("/", "/metrics"):
            refresh()
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        check = checks.get(path)
        if check is None:
            status, text = "404 Not Found", f"no page here; there are /metrics, {', '.join(checks)}"
        else:
            found = check()
            status, text = "200 OK" if found is Health.SERVING else "503 Service Unavailable", found.value
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [text.encode() + b"\n"]

    host, _, port = address.rpartition(":")
    return StatusPages(_Server(host, int(port), answer))


class _Server(BoundedHTTPServer, WSGIServer):
    def __init__(self, host: str, port: int, application: WSGIApplication) -> None:
        super().__init__(host, port, _PageHandler)
        self.set_app(application)


class _PageHandler(WSGIRequestHandler):
    timeout = TIMEOUT_SECONDS

    def log_message(self, *_: object) -> None:
        """Log no requests: probes send one every few seconds."""
