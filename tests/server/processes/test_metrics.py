"""The metrics of several servers at one address."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.processes import metrics as module
from logitport_server.processes.metrics import FleetMetrics
from logitport_server.registry.loader import Loader
from logitport_server.status_pages import Health, listen
from logitport_session.steps.step_time import Spending
from tests.server.served_pages import pages_end  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class OneServer:
    address: str
    metrics_port: int | None
    restarts: int = 0


def served(steps: int, *, is_ready: bool = True) -> int:
    """Serve the pages of a server that has made steps; returns the port."""
    metrics = Metrics(Loader(1))
    reply = processing_pb2.StepEdits(applied=[common_pb2.RowsApplied(processor="dry", rows=3)])
    for _ in range(steps):
        metrics.step(reply, 0.001, "grpc", "someone", Spending({"dry": 0.5}))
    return listen(
        "127.0.0.1:0", metrics.registry, health=lambda: Health.SERVING if is_ready else Health.NOT_SERVING
    ).port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


def samples(fleet: FleetMetrics) -> dict[str, dict[str, float]]:
    """Read the metrics as Prometheus does: by name and server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.listen('127.0.0.1:0')}/metrics") as response:
        text = response.read().decode()
    found: dict[str, dict[str, float]] = {}
    names = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in names, "a family comes once"
        names.add(family.name)
        for sample in family.samples:
            if sample.labels.get("transport", "grpc") == "grpc" and sample.labels.get("part", "edits") == "edits":
                found.setdefault(sample.name, {})[sample.labels["server"]] = sample.value
    return found


def test_each_server_has_its_own_values() -> None:
    found = samples(FleetMetrics([OneServer("a:1", served(2)), OneServer("b:2", served(3), restarts=4)]))
    assert found["logitport_steps_total"] == {"a:1": 2.0, "b:2": 3.0}
    assert found["logitport_step_seconds_count"] == {"a:1": 2.0, "b:2": 3.0}
    assert found["logitport_rows_applied_total"] == {"a:1": 6.0, "b:2": 9.0}
    assert found["logitport_processor_step_seconds_sum"] == {"a:1": 1.0, "b:2": 1.5}
    assert found["logitport_sessions"] == {"a:1": 0.0, "b:2": 0.0}
    assert found["logitport_server_up"] == {"a:1": 1.0, "b:2": 1.0}
    assert found["logitport_server_restarts_total"] == {"a:1": 0.0, "b:2": 4.0}


def test_servers_that_do_not_answer_hide_no_others(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refused = closed.getsockname()[1]
    servers = [OneServer("a:1", served(2)), OneServer("stopped:2", silent_port), OneServer("ended:3", None)]
    found = samples(FleetMetrics([*servers, OneServer("killed:4", refused)]))
    assert found["logitport_server_up"] == {"a:1": 1.0, "stopped:2": 0.0, "ended:3": 0.0, "killed:4": 0.0}
    assert found["logitport_steps_total"] == {"a:1": 2.0}


def test_a_server_that_was_started_again() -> None:
    server = OneServer("a:1", served(2))
    fleet = FleetMetrics([server])
    assert samples(fleet)["logitport_steps_total"] == {"a:1": 2.0}
    server.metrics_port = served(1)
    assert samples(fleet)["logitport_steps_total"] == {"a:1": 1.0}


def test_an_address_in_use() -> None:
    fleet = FleetMetrics([])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        fleet.listen(f"127.0.0.1:{taken.getsockname()[1]}")


def test_it_can_be_registered_beside_others() -> None:
    registry: Any = CollectorRegistry()
    for _ in range(2):
        registry.register(FleetMetrics([]))


@pytest.mark.parametrize(("ready", "status"), [([False, True], 200), ([False, False], 503)])
def test_a_fleet_is_ready_if_one_of_its_servers_is(ready: list[bool], status: int) -> None:
    servers = [OneServer(f"a:{at}", served(0, is_ready=one)) for at, one in enumerate(ready)]
    port = FleetMetrics([OneServer("a:9", None), *servers]).listen("127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as response:
            found = response.status
    except urllib.error.HTTPError as error:
        with error:
            found = error.code
    assert found == status


def test_a_server_that_hangs_does_not_delay_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes wait for a second."""
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        servers = [OneServer("hung:1", hung.getsockname()[1]), OneServer("a:1", served(0))]
        port = FleetMetrics(servers).listen("127.0.0.1:0")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as response:
            assert response.status == 200
