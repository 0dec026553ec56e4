"""The time of each processor in the metrics of a real server: built-ins, shipped processors, programs."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitport import Client, CustomLogitProcessor, EditProcessor, EditRequest, Request, RowEdits
from tests.programs.runtime import build
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.conftest import RunningServer

VOCAB = 64
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
    with client.session(vocab_size=VOCAB, programs="all") as session:
        handle = session.add(Request([1], processors=chain))
        session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
        wait_until(lambda: "bad_words" in times(server))
    assert program.name not in times(server)


def test_a_deleted_processor_leaves(server: RunningServer, client: Client) -> None:
    ref = client.register(SleepsForEdits, name="metrics/sleeps")
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("metrics/sleeps", {})]))
        session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
    wait_until(lambda: "SleepsForEdits" in times(server))
    client.delete(ref.digest)
    assert "SleepsForEdits" not in times(server)


def test_the_calls_of_apply_count(server: RunningServer, client: Client) -> None:
    before = times(server).get("temperature", (0, 0))[0]
    client.apply(np.zeros((1, VOCAB), np.float32), [Request([1], processors=[("temperature", {"temperature": 0.5})])])
    wait_until(lambda: times(server).get("temperature", (0, 0))[0] == before + 1)  # counted shortly after the reply
