"""Metrics of a real server: waits, replays, bytes, refusals, workers."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitport import AccessDenied, Client, LogitportError, Request
from logitport_server.access import new_token
from tests.toy_processors import DenyHistory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 64
TOKENS = {name: new_token(name, scopes) for name, scopes in {"alice": ["apply", "register"], "bob": ["apply"]}.items()}


@pytest.fixture(scope="module")
def metered(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path: Path = tmp_path_factory.mktemp("access") / "tokens"
    path.write_text("\n".join(grant.line for _, grant in TOKENS.values()))
    options = ("--tokens", str(path), "--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0")
    with serving(*options) as running:
        yield running


class Change:
    """The growth of a server's metrics."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._before: dict[Any, float] = {}
        self._before = self._read()

    def __call__(self, name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return self._read().get(key, 0.0) - self._before.get(key, 0.0)

    def _read(self) -> dict[Any, float]:
        with urllib.request.urlopen(self.server.metrics_url, timeout=60) as page:
            families = text_string_to_metric_families(page.read().decode())
            return {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in families
                for sample in family.samples
            }


@pytest.fixture
def change(metered: RunningServer) -> Change:
    return Change(metered)


@pytest.fixture
def alice(metered: RunningServer) -> Iterator[Client]:
    with Client(metered.target, token=TOKENS["alice"][0]) as client:
        yield client


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_waits_and_bytes_by_transport(change: Change, alice: Client, transport: Any) -> None:
    with alice.session(vocab_size=VOCAB, transport=transport) as session:
        handle = session.add(Request(list(range(50)), processors=[(DenyHistory, {})]))
        for _ in range(10):
            session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
        wait_until(lambda: change("logitport_step_queue_seconds_count", transport=transport) == 10)
        wait_until(lambda: change("logitport_worker_queue_seconds_count") == 10)
    assert change("logitport_received_bytes_total", transport=transport) > 10 * 20
    assert change("logitport_sent_bytes_total", transport=transport) > 10 * 20
    assert change("logitport_admission_queue_seconds_count") == 1
    other = {"grpc": "local", "local": "grpc"}[transport]
    assert change("logitport_step_queue_seconds_count", transport=other) == 0


def test_bytes_of_calls(change: Change, alice: Client) -> None:
    logits = np.zeros((1, 4096), np.float32)
    alice.apply(logits, [Request([1], processors=[("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]})])])
    assert change("logitport_received_bytes_total", transport="unary") > logits.nbytes
    assert change("logitport_sent_bytes_total", transport="unary") > logits.nbytes


def test_replays(change: Change, alice: Client) -> None:
    with alice.session(vocab_size=VOCAB) as session:
        session.add(Request([1, 2]))
        session.add(Request([1, 2], output_token_ids=[3, 4, 5]))
    assert change("logitport_requests_replayed_total") == 1
    assert change("logitport_tokens_replayed_total") == 5


def test_refusals_by_principal(change: Change, metered: RunningServer, alice: Client) -> None:
    with alice.session(vocab_size=VOCAB) as session, pytest.raises(LogitportError):
        session.add(Request([1], processors=[("nothing", {})]))
    assert change("logitport_requests_refused_total", code="NOT_FOUND", principal="alice") == 1
    refused = Request([1], processors=[("nothing", {})], request_id="r1", on_error="skip")
    alice.apply(np.zeros((1, VOCAB), np.float32), [refused], check=False)
    assert change("logitport_requests_refused_total", code="NOT_FOUND", principal="alice") == 2
    assert change("logitport_requests_failed_total", code="NOT_FOUND", processor="") == 0
    with Client(metered.target, token=TOKENS["bob"][0]) as bob, pytest.raises(AccessDenied):
        bob.register(DenyHistory)
    assert change("logitport_calls_refused_total", code="NOT_PERMITTED", principal="bob") == 1
    with Client(metered.target, token="wrong") as stranger, pytest.raises(AccessDenied):
        stranger.processors()
    assert change("logitport_calls_refused_total", code="NOT_AUTHENTICATED", principal="") == 1


def test_workers_and_the_registry(metered: RunningServer, alice: Client) -> None:
    present = Change(metered)
    present._before = {}
    registered = present("logitport_processors_registered")
    ref = alice.register(DenyHistory)
    with alice.session(vocab_size=VOCAB) as session:
        session.add(Request([1], processors=[(ref.digest, {})]))
        assert present("logitport_processors_registered") == registered + 1
        assert present("logitport_workers_resident_memory_bytes") > present("logitport_workers") * 1e6 > 0
        assert present("logitport_requests_waiting") == present("logitport_calls_waiting") == 0
        assert present("logitport_ready") == present("logitport_store_up") == 1
    alice.delete(ref.digest)
