"""A server that dies and restarts: state is rebuilt from the history, or the request fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, NotFound, Request, ServerUnavailable, StateLost
from tests.conftest import free_address
from tests.programs.runtime.build import repetition_penalty
from tests.toy_processors import HalveInPlace
from tests.waiting import resume, stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session import Session

VOCAB = 50
# Processors run in the server's process: workers are slow to start, and other tests kill them.
SHIPPED = ("--enable-custom-logit-processor", "--isolation", "none")


@pytest.fixture
def target() -> str:
    return free_address()


@pytest.fixture
def serve(start_server: Callable[..., Any], target: str) -> Callable[[], Any]:
    return lambda: start_server("--listen", target, *SHIPPED)


@pytest.fixture(params=["grpc", "local"])
def session(
    request: pytest.FixtureRequest, serve: Callable[[], Any], target: str
) -> Iterator[tuple[Session, list[Any]]]:
    servers = [serve()]
    with (
        Client(target, timeout=200) as client,
        client.session(vocab_size=VOCAB, dtype=torch.float32, transport=request.param) as opened,
    ):
        yield opened, servers


def kill(servers: list[Any]) -> None:
    servers[-1].process.kill()
    servers[-1].process.wait()


def test_the_client_waits_for_a_server_that_is_not_back_yet(
    session: tuple[Session, list[Any]], serve: Callable[[], Any]
) -> None:
    opened, servers = session
    handle = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    kill(servers)
    threading.Timer(1.0, lambda: servers.append(serve())).start()
    logits = opened.logits_buffer(1) if opened.transport == "grpc" else torch.zeros(1, VOCAB)
    opened.step({handle: []}).apply(logits)
    assert logits[0, 3] == -torch.inf
    while len(servers) < 2:
        time.sleep(0.05)


def test_only_state_that_read_logits_is_lost(session: tuple[Session, list[Any]], serve: Callable[[], Any]) -> None:
    opened, servers = session
    read, fresh = (opened.add(Request([1], processors=[(HalveInPlace, {})])) for _ in range(2))
    free = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    opened.step({read: []}).apply(torch.ones(1, VOCAB))
    kill(servers)
    servers.append(serve())
    logits = opened.logits_buffer(3)
    logits.fill_(1.0)
    result = opened.step({read: [2], fresh: [], free: [2]}).apply(logits, check=False)
    assert [type(error) for error in result.failures.values()] == [StateLost]
    assert list(result.failures) == [read]
    assert (logits[1] == 0.5).all()
    assert logits[2, 3] == -torch.inf
    assert isinstance(opened.step({read: [4]}).apply(logits[:1], check=False).failures[read], StateLost)
    opened.remove(read)
    again = opened.add(Request([1], [2, 4], processors=[(HalveInPlace, {})]))
    opened.step({again: []}).apply(logits[:1])


def test_a_buffer_outlives_the_server(session: tuple[Session, list[Any]], serve: Callable[[], Any]) -> None:
    opened, servers = session
    old = opened.logits_buffer(1)
    handle = opened.add(Request([1], processors=[(HalveInPlace, {})]))
    kill(servers)
    servers.append(serve())
    old.fill_(4.0)
    opened.step({handle: []}).apply(old)
    assert (old == 2.0).all()
    new = opened.logits_buffer(1)
    new.fill_(4.0)
    opened.step({handle: [1]}).apply(new)
    assert (new == 2.0).all()


def test_a_processor_unknown_to_the_new_server_fails_only_its_request(
    session: tuple[Session, list[Any]], serve: Callable[[], Any], target: str
) -> None:
    opened, servers = session
    with Client(target) as client:
        client.register(HalveInPlace, name="test/half")
    named = opened.add(Request([1], processors=[("test/half", {})]))
    free = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    kill(servers)
    servers.append(serve())
    logits = torch.ones(2, VOCAB)
    result = opened.step({named: [], free: []}).apply(logits, check=False)
    assert [type(error) for error in result.failures.values()] == [NotFound]
    assert logits[1, 3] == -torch.inf


def test_requests_come_and_go_over_a_reconnect(session: tuple[Session, list[Any]], serve: Callable[[], Any]) -> None:
    opened, servers = session
    first = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    kill(servers)
    servers.append(serve())
    second = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [4]})]))
    kill(servers)
    servers.append(serve())
    opened.remove(first)
    logits = torch.ones(1, VOCAB)
    opened.step({second: []}).apply(logits)
    assert torch.isinf(logits[0]).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_server_that_stops_for_a_while(
    start_server: Callable[..., Any], transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logitport.session.connection.frame_connection._MARGIN_SECONDS", 1.0)
    server = start_server("--processor-timeout-seconds", "0.1", "--no-entry-points")
    with (
        Client(server.target, timeout=200) as client,
        client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as opened,
    ):
        handle = opened.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        logits = torch.zeros(1, VOCAB)
        stop(server.process)
        pending = opened.step({handle: []})
        threading.Timer(4.0, lambda: resume(server.process)).start()
        pending.apply(logits)
        assert logits[0, 3] == -torch.inf
        assert opened.reconnects >= 1


def test_no_server_comes_back(serve: Callable[[], Any], target: str) -> None:
    server = serve()
    with Client(target) as client, client.session(vocab_size=VOCAB, reconnect_seconds=0.3) as opened:
        handle = opened.add(Request([1]))
        kill([server])
        began = time.monotonic()
        with pytest.raises(ServerUnavailable):
            opened.step({handle: []}).apply(np.zeros((1, VOCAB), np.float32))
        assert time.monotonic() - began < 20


def test_programs_on_the_engine_go_on(session: tuple[Session, list[Any]], serve: Callable[[], Any]) -> None:
    """The new server sends the program again, and the engine counts the history on."""
    opened, servers = session
    chain = [("disallowed_tokens", {"token_ids": [3]}), (repetition_penalty(4).program, {"penalty": 2.0})]
    handle = opened.add(Request([1], processors=chain))
    opened.step({handle: [5]}).apply(torch.ones(1, VOCAB))
    kill(servers)
    servers.append(serve())
    logits = torch.ones(1, VOCAB)
    result = opened.step({handle: [6]}).apply(logits)
    assert logits[0, [1, 5, 6]].tolist() == [0.5, 0.5, 0.5]
    assert logits[0, 3] == -torch.inf
    assert logits[0, 7] == 1.0
    assert sum(result.rows_applied.values()) == 2
    assert opened.reconnects == 1


@pytest.mark.parametrize("programs", ["off", "trusted"])
def test_programs_on_the_server_go_on(serve: Callable[[], Any], target: str, programs: Any) -> None:
    """Their state follows from the history, although they read logits."""
    servers = [serve()]
    with Client(target, timeout=200) as client, client.session(vocab_size=VOCAB, programs=programs) as opened:
        handle = opened.add(Request([1], processors=[(repetition_penalty(4).program, {"penalty": 2.0})]))
        for new_ids in ([5], [6]):
            logits = np.ones((1, VOCAB), np.float32)
            opened.step({handle: new_ids}).apply(logits)
            kill(servers)
            servers.append(serve())
        assert logits[0, [1, 5, 6]].tolist() == [0.5, 0.5, 0.5]
        assert handle.sends_logits
