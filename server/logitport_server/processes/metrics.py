"""The metrics of several servers at one address, each with the label `server`."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, Request, build_opener

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from logitport_server.processes.health import check_health
from logitport_server.status_pages import Health, listen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    class Scraped(Protocol):
        """A server with metrics of its own; see `Supervisor`."""

        @property
        def address(self) -> str: ...
        @property
        def metrics_port(self) -> int | None: ...
        @property
        def restarts(self) -> int: ...


logger = logging.getLogger(__name__)

# Less than Prometheus' default (10 s), so that a server that hangs does not hide the others.
_TIMEOUT_SECONDS = 5.0
_LABEL = "server"
# Unlike the text format of Prometheus, it keeps the families as they were.
_FORMAT = "application/openmetrics-text; version=1.0.0"


class FleetMetrics(Collector):
    """Collects the metrics of all servers when they are read.

    Not the multiprocess mode of prometheus_client: it sums up what the servers have written to files, so it has no
    metrics that are computed when they are read, such as the number of sessions.

    Args:
        servers: may be started again at any time.
    """

    def __init__(self, servers: Sequence[Scraped]) -> None:
        self._servers = servers
        # Twice as many as servers, so that one that hangs, and holds a thread for seconds, does not delay the others.
        self._threads = ThreadPoolExecutor(2 * len(servers) + 1, "logitport-metrics")
        self._collecting = threading.Lock()
        self._opener = build_opener(ProxyHandler({}))

    def listen(self, address: str) -> int:
        """Serve the metrics over HTTP at HOST:PORT; returns the port. Raises OSError if the address is taken."""
        registry = CollectorRegistry()
        registry.register(self)
        return listen(address, registry, health=self._health).port

    def _health(self) -> Health:
        answers = [self._threads.submit(self._is_ready, server) for server in self._servers]
        is_any_ready = any(answer.result() for answer in as_completed(answers))
        return Health.SERVING if is_any_ready else Health.NOT_SERVING

    def _is_ready(self, server: Scraped) -> bool:
        port = server.metrics_port
        return port is not None and check_health(f"127.0.0.1:{port}") is Health.SERVING

    def describe(self) -> Iterable[Metric]:
        """Return no names: they are known when the servers are read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(
            "logitport_server_up", "Whether the server has answered with its metrics", labels=[_LABEL]
        )
        restarts = CounterMetricFamily(
            "logitport_server_restarts", "Starts of the server after it had ended", labels=[_LABEL]
        )
        families: dict[str, Metric] = {}
        with self._collecting:  # not more often at a time: each reads all servers
            for server, found in zip(self._servers, self._threads.map(self._read, self._servers), strict=True):
                up.add_metric([server.address], found is not None)
                restarts.add_metric([server.address], server.restarts)
                for family in found or ():
                    merged = Metric(family.name, family.documentation, family.type, family.unit)
                    families.setdefault(family.name, merged).samples += [
                        sample._replace(labels={**sample.labels, _LABEL: server.address}) for sample in family.samples
                    ]
        return (up, restarts, *families.values())

    def _read(self, server: Scraped) -> list[Metric] | None:
        """Return the metrics of a server; None if it does not answer."""
        if server.metrics_port is None:
            return None
        request = Request(f"http://127.0.0.1:{server.metrics_port}/metrics", headers={"Accept": _FORMAT})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                text = response.read().decode()
                return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call] # not annotated
        except (OSError, HTTPException, ValueError) as error:
            logger.warning("the metrics of server %s cannot be read: %s", server.address, error)
            return None
