"""Health checks of one server: its page /readyz."""

from __future__ import annotations

import http.client

from logitport_server.http_pages.status_pages import Health

_TIMEOUT_SECONDS = 3.0


def check_health(address: str) -> Health:
    """Check a server once. Each wait for it takes at most three seconds.

    Args:
        address: HOST:PORT of the server's metrics.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        with connection.getresponse() as reply:
            return Health(reply.read(64).decode().strip())
    except (OSError, ValueError, http.client.HTTPException):
        return Health.SILENT
    finally:
        connection.close()
