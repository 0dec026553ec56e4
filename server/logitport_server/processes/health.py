"""Health checks of one server: its page /readyz."""

from __future__ import annotations

import http.client
from enum import Enum

from logitport_server.status_pages import NOT_READY

_TIMEOUT_SECONDS = 3.0


class Health(Enum):
    """The result of a health check."""

    SERVING = "serving"
    NOT_SERVING = "it answers, and accepts no sessions"
    SILENT = "it does not answer, or its event loop does not run"


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
            if reply.status == http.HTTPStatus.OK:
                return Health.SERVING
            return Health.NOT_SERVING if reply.read(64).decode().strip() == NOT_READY else Health.SILENT
    except (OSError, ValueError, http.client.HTTPException):
        return Health.SILENT
    finally:
        connection.close()
