"""The load of one server, from its metrics."""

from __future__ import annotations

import http.client

from prometheus_client.parser import text_string_to_metric_families

from logitport_server.processes.report import ServerLoad

_TIMEOUT_SECONDS = 3.0


def read_load(metrics_address: str) -> ServerLoad | None:
    """Read the metrics of the server that serves them at HOST:PORT; None if that fails."""
    host, _, port = metrics_address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as reply:
            return parse_load(reply.read().decode())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def parse_load(metrics: str) -> ServerLoad:
    """Find the load of a server in its metrics. Raises ValueError if they are malformed."""
    sums = dict.fromkeys(("logitport_sessions", "logitport_step_seconds_count", "logitport_step_seconds_sum"), 0.0)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    sessions, steps, seconds = sums.values()
    return ServerLoad(int(sessions), int(steps), seconds)
