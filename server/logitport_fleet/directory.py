"""The list of addresses over HTTP, in the form of Prometheus' http_sd_configs, for clients and for Prometheus."""

from __future__ import annotations

import json
import ssl
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from logitport_server.http_pages.bounded_http import TIMEOUT_SECONDS, BoundedHTTPServer
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.reloaded import Reloaded

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from logitport_server.processes.server_report import ServerReport

PATH = "/targets"
METRICS_LABEL = "__meta_logitport_metrics_address"


def document(reports: Iterable[ServerReport]) -> bytes:
    """Return the list of the servers that are ready, or b""."""
    groups = [
        {"targets": [report.address], "labels": {METRICS_LABEL: report.metrics_address}}
        for report in reports
        if report.state == "ready"
    ]
    return json.dumps(groups).encode() if groups else b""


class Directory(BoundedHTTPServer):
    """Serves the list that was published last, from memory.

    Without a server, it answers with status 503: clients and Prometheus then keep the list that they have.

    Args:
        host: the address to listen on.
        port: the port; 0 selects a free one.
        certificate: PEM files of the certificate chain and its key, for https; None for http.

    Raises:
        OSError: the address is taken.
        StartupError: a file cannot be read, or is invalid.
    """

    def __init__(self, host: str, port: int, certificate: tuple[Path, Path] | None = None) -> None:
        self.text = b""
        self._tls: Reloaded[ssl.SSLContext] | None = None
        if certificate is not None:
            self._tls = Reloaded(
                "tls", lambda: certificate, partial(_read_certificate, *certificate), lambda _: "the list's certificate"
            )
        super().__init__(host, port, _DirectoryHandler)
        threading.Thread(target=self.serve_forever, name="logitport-directory", daemon=True).start()

    def publish(self, text: bytes) -> None:
        """Replace the list by the result of `document`."""
        self.text = text

    def refresh_certificate(self) -> None:
        """Read the certificate again if its files have changed. Keeps the last one if that fails."""
        if self._tls is not None:
            self._tls.refresh()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()

    def serve_connection(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().serve_connection(request, client_address)
        else:  # the handshake happens here, on the connection's own thread
            with self._tls.value.wrap_socket(request, server_side=True) as encrypted:
                super().serve_connection(encrypted, client_address)


def _read_certificate(chain: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(chain, key)
    except OSError as error:
        raise StartupError(f"{chain} and {key} are not a PEM certificate and its key: {error}") from error
    return context


class _DirectoryHandler(BaseHTTPRequestHandler):
    server: Directory
    timeout = TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer with the list."""
        if self.path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"the list is at {PATH}")
        elif not (text := self.server.text):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "no server is ready")
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class fixes the name
        """Do not log each request."""
