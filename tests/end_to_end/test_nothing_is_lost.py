"""Generation with servers that are killed or stopped at any time gives the tokens of an undisturbed run."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from logitport import Client, EditProcessor, EditRequest, Request, RowEdits
from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logitport.session import Handle, Session

VOCAB = 48
STEPS = 64
POINTS = ["before step", "in step", "after step"]
SHIPPED = "--enable-custom-logit-processor"
NO_WORKERS = (SHIPPED, "--isolation", "none")  # which are slow to start


class EveryThird(EditProcessor):
    """Denies the id three places before. Its state is the last three ids and the count of all ids."""

    def start(self, request: EditRequest) -> None:
        request.state = {"last": request.history.token_ids[-3:].tolist(), "count": len(request.history)}

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state["last"] = [*request.state["last"], token_id][-3:]
        request.state["count"] += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.state["last"][:1])
        edits.bias([request.state["count"] % request.vocab_size], [5.0])


class Favours(EditProcessor):
    """Raises the logit of the id in its parameters. Registered and used by name."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if len(request.history) % request.params["each"] == 0:
            edits.force(request.params["token_id"])


CHAINS: list[list[tuple[Any, dict[str, Any]]]] = [
    [("no_repeat_ngram", {"ngram_size": 2, "window_size": 200})],
    [
        (
            "thinking_budget",
            {"thinking_budget": 9, "thinking_start_ids": [7], "thinking_end_ids": [8], "newline_id": 5},
        ),
        ("disallowed_tokens", {"token_ids": [1, 2, 3]}),
    ],
    [(EveryThird, {})],
    [("test/favours", {"each": 5, "token_id": 11}), (EveryThird, {}), ("no_repeat_ngram", {"ngram_size": 3})],
]


class Servers:
    """Servers started one after another on one port."""

    def __init__(self, start: Callable[..., Any], *options: str) -> None:
        self.target = free_address()
        self._start = partial(start, "--listen", self.target, *options)
        self.now = self._start()

    def replace(self, how: Literal["SIGKILL", "SIGTERM"]) -> None:
        if how == "SIGKILL":
            self.now.process.kill()
            self.now.process.wait()
        else:
            assert self.now.stop() == 0
        self.now = self._start()


@pytest.fixture
def servers(start_server: Callable[..., Any]) -> Servers:
    return Servers(start_server, *NO_WORKERS)


@pytest.fixture
def client(servers: Servers) -> Iterator[Client]:
    with Client(servers.target, timeout=200) as connected:
        connected.register(Favours, name="test/favours")
        yield connected


def model(histories: list[list[int]]) -> np.ndarray[Any, Any]:
    """Return logits that depend on the last ids of each history."""
    return np.stack([np.random.default_rng(ids[-2:]).normal(size=VOCAB).astype(np.float32) for ids in histories])


def generate(session: Session, disturb: Callable[[str, int], None] = lambda point, step: None) -> list[list[int]]:
    """Generate greedily for requests of all chains. Some are added later, and one is rewound."""
    histories: dict[Handle, list[int]] = {}
    done: list[list[int]] = []
    new_ids: dict[Handle, list[int]] = {}
    for step in range(STEPS):
        if step % 8 == 0:
            chain = CHAINS[step // 8 % len(CHAINS)]
            handle = session.add(Request([step % 5 + 4, 7, 9], processors=chain, request_id=f"at {step}"))
            histories[handle], new_ids[handle] = [step % 5 + 4, 7, 9], []
        if step == 40:
            oldest = next(iter(histories))
            del histories[oldest][-6:]
            session.rewind(oldest, len(histories[oldest]))
            new_ids[oldest] = []
        if len(histories) > 5:
            oldest = next(iter(histories))
            done.append(histories.pop(oldest))
            del new_ids[oldest]
            session.remove(oldest)
        disturb("before step", step)
        pending = session.step(new_ids)
        disturb("in step", step)
        logits = model(list(histories.values()))
        result = pending.apply(logits)
        assert result.failures == result.skipped == {}
        disturb("after step", step)
        new_ids = {handle: [int(row.argmax())] for handle, row in zip(histories, logits, strict=True)}
        for handle, ids in new_ids.items():
            histories[handle] += ids
    return [*done, *histories.values()]


@pytest.mark.parametrize(("how", "times"), [("SIGKILL", 3), ("SIGTERM", 1)])
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_the_tokens_equal_those_of_an_undisturbed_run(
    client: Client,
    servers: Servers,
    transport: Literal["grpc", "local"],
    how: Literal["SIGKILL", "SIGTERM"],
    times: int,
) -> None:
    with client.session(vocab_size=VOCAB, transport=transport) as session:
        undisturbed = generate(session)
        assert session.reconnects == 0
    chance = random.Random(f"{transport} {how}")
    moments = dict(zip(chance.sample(range(1, STEPS - 2, 4), times), chance.sample(POINTS, times), strict=True))

    def disturb(point: str, step: int) -> None:
        if moments.get(step) == point:
            servers.replace(how)

    with client.session(vocab_size=VOCAB, transport=transport) as session:
        assert generate(session, disturb) == undisturbed
        assert session.reconnects == times
        assert session.transport == transport
    assert client.processor("test/favours").names == ("test/favours",)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_server_that_ends_at_a_random_moment(
    client: Client, servers: Servers, transport: Literal["grpc", "local"]
) -> None:
    """The server ends while frames are in flight, not between two calls."""
    with client.session(vocab_size=VOCAB, transport=transport) as session:
        undisturbed = generate(session)
    going: list[threading.Thread] = []

    def disturb(point: str, step: int) -> None:
        if step == 20 and point == "before step":
            going.append(threading.Thread(target=servers.replace, args=["SIGKILL"]))
            going[0].start()

    with client.session(vocab_size=VOCAB, transport=transport) as session:
        assert generate(session, disturb) == undisturbed
        going[0].join()
        assert session.reconnects <= 1


def test_a_name_bound_by_another_client_meanwhile_is_left_unchanged(client: Client, servers: Servers) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("test/favours", {"each": 1, "token_id": 11})]))
        servers.replace("SIGKILL")
        with Client(servers.target) as other:
            rebound = other.register(EveryThird, name="test/favours")
            logits = np.zeros((1, VOCAB), np.float32)
            session.step({handle: []}).apply(logits)
            assert np.isfinite(logits[0]).nonzero()[0].tolist() == [11]
            assert other.processor("test/favours") == rebound
            assert len([ref for ref in other.processors() if not ref.builtin]) == 2


def test_rebinding_a_name_does_not_affect_existing_requests(client: Client, servers: Servers) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("test/favours", {"each": 1, "token_id": 11})]))
        client.register(EveryThird, name="test/favours", replace=True)
        servers.replace("SIGKILL")
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert np.isfinite(logits[0]).nonzero()[0].tolist() == [11]
        later = session.add(Request([1], processors=[("test/favours", {})]))
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({later: []}).apply(logits)
        assert np.isfinite(logits[0]).sum() == VOCAB - 1


def test_stored_processors_outlive_the_server_and_the_client(start_server: Callable[..., Any], tmp_path: Path) -> None:
    servers = Servers(start_server, SHIPPED, "--store", str(tmp_path / "store"))
    with Client(servers.target) as author:
        kept = author.register(Favours, name="test/favours", shared=True)
    with Client(servers.target) as engine, engine.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("test/favours", {"each": 1, "token_id": 11})]))
        servers.replace("SIGKILL")
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert np.isfinite(logits[0]).nonzero()[0].tolist() == [11]
        assert engine.processor("test/favours") == kept
