"""Limits for small HTTP servers with a thread for each connection."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from typing import Any

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 64


class BoundedHTTPServer(ThreadingMixIn, HTTPServer):
    """Accepts at most `MAX_CONNECTIONS` at a time, each for at most `TIMEOUT_SECONDS`. Further ones are closed.

    Args:
        host: the address to listen on, also of IPv6 in brackets.
        port: the port; 0 selects a free one.
        handler: answers the requests of a connection.

    Raises:
        OSError: the address is taken.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in host:
            self.address_family = AF_INET6
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host.strip("[]"), port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection until its end, or until its time is up."""
        request.settimeout(TIMEOUT_SECONDS)
        # The timeout is for each wait. A client that sends a byte from time to time is cut off by the timer.
        watched = request.dup()
        timer = threading.Timer(TIMEOUT_SECONDS, _shut_down, [watched])
        timer.daemon = True
        timer.start()
        try:
            self.serve_connection(request, client_address)
        finally:
            timer.cancel()
            watched.close()

    def serve_connection(self, request: Any, client_address: Any) -> None:
        """Run the handler. A subclass may encrypt the connection before."""
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class fixes the name
        """Log the error of a connection for debugging only: any client can cause one."""
        logger.debug("an HTTP connection of %s has failed", client_address, exc_info=True)


def _shut_down(connection: socket) -> None:
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)
