"""Metrics of a real server: waits, replays, bytes, refusals, workers, and the time of each processor."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitport import (
    AccessDenied,
    Client,
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    LogitportError,
    Request,
    RowEdits,
)
from logitport_server.access import new_token
from tests.programs.runtime import build
from tests.toy_processors import DenyHistory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 64
TOKENS = {name: new_token(name, scopes) for name, scopes in {"alice": ["apply", "register"], "bob": ["apply"]}.items()}


@pytest.fixture(scope="module")
def metered(serving: Callable[..., Any]) -> Iterator[RunningServer]:
    options = ("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0")
    with serving(*options, grants=[grant for _, grant in TOKENS.values()]) as running:
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


SECONDS = 0.02
STEPS = 3


class Sleeps(CustomLogitProcessor):
    """Reads logits, slowly."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        time.sleep(SECONDS)
        return logits


class SleepsForEdits(EditProcessor):
    """Reads no logits, and is slow."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(SECONDS)


class IsFast(EditProcessor):
    """Is called at the same time as the slow ones, by another worker."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class SleepsAndRaises(EditProcessor):
    """Fails after a while."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(SECONDS)
        raise ValueError("too late")


def times(server: RunningServer) -> dict[str, tuple[float, float]]:
    """Steps and seconds, by the processor's label without its digest."""
    with urllib.request.urlopen(server.metrics_url, timeout=60) as page:
        families = {family.name: family for family in text_string_to_metric_families(page.read().decode())}
    found: dict[str, dict[str, float]] = {}
    for sample in families["logitport_processor_step_seconds"].samples:
        name = sample.labels["processor"].partition(" ")[0]
        found.setdefault(name, {})[sample.name.rpartition("_")[2]] = sample.value
    return {name: (values["count"], values["sum"]) for name, values in found.items()}


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_slow_processor_shows(start_server: Any, transport: Any) -> None:
    server = start_server("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0")
    program = build.temperature().program
    chains: list[list[Any]] = [
        [("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]}), (SleepsForEdits, {})],
        [(IsFast, {})],
        [(Sleeps, {}), (program, {"temperature": 0.5})],
    ]
    options = {"vocab_size": VOCAB, "programs": "off", "transport": transport}
    with Client(server.target) as client, client.session(**options) as session:
        handles = [session.add(Request([1], processors=chain)) for chain in chains]
        for _ in range(STEPS):
            session.step({handle: [2] for handle in handles}).apply(np.zeros((3, VOCAB), np.float32))
        failing = session.add(Request([1], processors=[(SleepsAndRaises, {})]))
        session.step({failing: [2]}).apply(np.zeros((1, VOCAB), np.float32), check=False)
        wait_until(lambda: "SleepsAndRaises" in times(server), server.log.read_text)
        found = times(server)
    assert {name: count for name, (count, _) in found.items()} == {
        "min_tokens": STEPS,
        "SleepsForEdits": STEPS,
        "IsFast": STEPS,
        "Sleeps": STEPS,
        program.name: STEPS,
        "SleepsAndRaises": 1,
    }
    # The server waits for all workers at the same time. The fast one must not be charged with the time of the slow one.
    slow = {name for name, (count, seconds) in found.items() if seconds >= count * SECONDS * 0.9}
    assert slow == {"SleepsForEdits", "Sleeps", "SleepsAndRaises"}


def test_a_program_in_the_engine_has_no_time_on_the_server(server: RunningServer, client: Client) -> None:
    program = build.min_p().program
    chain: list[Any] = [(program, {"min_p": 0.1}), ("bad_words", {"bad_words_ids": [[5]]})]
    # Other tests share the server.
    before = times(server)
    with client.session(vocab_size=VOCAB, programs="all") as session:
        handle = session.add(Request([1], processors=chain))
        session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
        wait_until(lambda: times(server).get("bad_words") != before.get("bad_words"))
    assert times(server).get(program.name) == before.get(program.name)


def test_a_deleted_processor_leaves_the_metrics(metered: RunningServer, alice: Client) -> None:
    # Not on the server that all tests share: there the principal may have used up its labels.
    ref = alice.register(SleepsForEdits, name="metrics/sleeps")
    with alice.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("metrics/sleeps", {})]))
        session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
    wait_until(lambda: "SleepsForEdits" in times(metered))
    alice.delete(ref.digest)
    assert "SleepsForEdits" not in times(metered)


def test_the_calls_of_apply_count(server: RunningServer, client: Client) -> None:
    before = times(server).get("temperature", (0, 0))[0]
    client.apply(np.zeros((1, VOCAB), np.float32), [Request([1], processors=[("temperature", {"temperature": 0.5})])])
    wait_until(lambda: times(server).get("temperature", (0, 0))[0] == before + 1)  # counted shortly after the reply
