"""The pages /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Gauge

from logitport import Client
from logitport_server.http_pages import bounded_http, status_pages
from logitport_server.http_pages.status_pages import Health, Heartbeat, listen
from tests.event_loops import on_loop
from tests.server.served_pages import pages_end  # noqa: F401 - a fixture
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_checks_answer_as_their_functions() -> None:
    state = SimpleNamespace(alive=True, health=Health.NOT_SERVING)
    registry, values = CollectorRegistry(), [1]
    Gauge("answer", "Of everything", registry=registry).set_function(lambda: values[-1])
    pages = listen(
        "127.0.0.1:0",
        registry,
        health=lambda: state.health,
        is_alive=lambda: state.alive,
        refresh=lambda: values.append(42),
    )
    port = pages.port
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (503, "not ready\n")
    state.alive, state.health = False, Health.SERVING
    assert get(port, "/healthz") == (503, "not alive\n")
    assert get(port, "/readyz") == (200, "ok\n")
    state.health = Health.SILENT
    assert get(port, "/readyz") == (503, "not alive\n")
    assert values == [1], "only metrics are refreshed, before they are shown"
    for path in ("/metrics", "/"):
        status, text = get(port, path)
        assert status == 200
        assert "answer 42.0" in text
    assert get(port, "/debug") == (404, "no page here; there are /metrics, /healthz, /readyz\n")
    pages.close()
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_listening_on_ipv6() -> None:
    try:
        pages = listen("[::1]:0", CollectorRegistry(), health=lambda: Health.SERVING)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with urllib.request.urlopen(f"http://[::1]:{pages.port}/readyz", timeout=60) as response:
        assert response.status == 200
    pages.close()


@pytest.mark.slow
def test_idle_and_slow_connections_do_not_take_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte ends a wait, so only a limit of the whole connection helps."""
    monkeypatch.setattr(bounded_http, "TIMEOUT_SECONDS", 0.5)
    pages = listen("127.0.0.1:0", CollectorRegistry(), health=lambda: Health.SERVING)
    before = threading.active_count()
    slow = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(200)]
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(0.1):
            for connection in slow:
                with suppress(OSError):
                    connection.send(b"G")

    sending = threading.Thread(target=send)
    try:
        assert threading.active_count() - before <= 2 * bounded_http.MAX_CONNECTIONS  # a thread and a timer each
        sending.start()
        wait_until(lambda: _answers(pages.port))
    finally:
        ended.set()
        sending.join()
        for connection in slow:
            connection.close()
        pages.close()
    wait_until(lambda: threading.active_count() <= before)


def _answers(port: int) -> bool:
    with suppress(OSError):
        return get(port, "/readyz")[0] == 200
    return False


@on_loop
async def test_a_heartbeat_measures_how_late_the_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_pages, "_BEAT_SECONDS", 0.01)
    registry = CollectorRegistry()
    heartbeat = Heartbeat(registry)
    beating = asyncio.create_task(heartbeat.beat())
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 - the beat is due meanwhile
    await asyncio.sleep(0.05)
    beating.cancel()
    assert (registry.get_sample_value("logitport_event_loop_lag_seconds_sum") or 0) >= 0.18
    assert heartbeat.is_alive()


@on_loop
async def test_a_loop_that_does_not_run_is_not_responsive_and_then_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = Heartbeat(CollectorRegistry())
    monkeypatch.setattr(status_pages, "_RESPONSE_SECONDS", 0.0)
    assert heartbeat.is_responsive()  # it has not begun: a long start is no hang
    beating = asyncio.create_task(heartbeat.beat())
    await asyncio.sleep(0)
    beating.cancel()
    assert not heartbeat.is_responsive()
    assert heartbeat.is_alive()
    monkeypatch.setattr(status_pages, "MAX_SILENCE_SECONDS", 0.0)
    assert not heartbeat.is_alive()


@pytest.mark.slow
def test_a_server_that_drains_is_alive_and_not_ready(
    serving: Callable[..., AbstractContextManager[RunningServer]],
) -> None:
    with serving("--metrics-listen", "127.0.0.1:0", "--stop-seconds", "60") as server:
        port = int(server.metrics_url.rpartition(":")[2].partition("/")[0])
        assert get(port, "/healthz") == get(port, "/readyz") == (200, "ok\n")
        wait_until(lambda: "logitport_event_loop_lag_seconds_count 0.0" not in get(port, "/metrics")[1])
        # The server waits for the session, because the session can move to another server.
        with Client([server.target, "127.0.0.1:9"]) as client, client.session(vocab_size=8):
            server.process.terminate()
            wait_until(lambda: get(port, "/readyz") == (503, "not ready\n"))
            assert get(port, "/healthz") == (200, "ok\n")
            with grpc.insecure_channel(server.target) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert check.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.process.wait(60) == 0
