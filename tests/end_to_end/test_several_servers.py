"""Several servers: sessions spread over them, and continue on others when one is lost."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, EditProcessor, EditRequest, NotFound, Request, RowEdits, ServerUnavailable, Tls
from logitport.integrations.common import environment
from tests.conftest import free_address
from tests.end_to_end.engines import VOCAB, Engine, kill, run, sessions_of, start_together, targets
from tests.programs.runtime.build import repetition_penalty
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logitport.session import Session
    from tests.conftest import RunningServer


@pytest.fixture
def cluster(start_server: Callable[..., RunningServer]) -> list[RunningServer]:
    return [start_server("--no-entry-points") for _ in range(3)]


def test_servers_that_are_killed_one_after_another_and_come_back(
    cluster: list[RunningServer], start_server: Callable[..., RunningServer]
) -> None:
    """A rolling restart: each server is replaced while the other ones run."""
    listed = targets(cluster)
    with Client(lambda: listed, timeout=200) as client:
        engines = [Engine(client, seed) for seed in range(4)]
        for server in cluster:
            new = start_server("--no-entry-points")
            listed = [new.target, *(target for target in listed if target != server.target)]
            run(engines, 10, lambda server=server: kill(server))
        assert sum(engine.wrong for engine in engines) == 0
        assert [engine.steps for engine in engines] == [30] * 4


class LoadsSlowly(EditProcessor):
    """Takes longer than a frame that is no admission may take."""

    def __init__(self) -> None:
        time.sleep(1.5)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(3)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_slow_load_is_not_lost(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch, transport: Any
) -> None:
    """An admission has the time that the server states for it."""
    monkeypatch.setattr("logitport.session.connection.frame_connection._MARGIN_SECONDS", 0.2)
    options = ("--no-entry-points", "--enable-custom-logit-processor", "--processor-timeout-seconds", "0.2")
    cluster = [start_server(*options) for _ in range(2)]
    with Client(targets(cluster), timeout=200) as client:
        session = client.session(vocab_size=VOCAB, transport=transport)
        began = time.monotonic()
        handle = session.add(Request([1], processors=[(LoadsSlowly, {})]))
        assert time.monotonic() - began > 1.5, "the load was waited for"
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert logits.argmax() == 3
        assert session.reconnects == 0
        assert sorted(sessions_of(server) for server in cluster) == [[0, 0], [1, 1]]


def test_one_address_is_wrong_from_the_start(cluster: list[RunningServer]) -> None:
    with Client([free_address(), *targets(cluster)[:2]], timeout=200) as client:
        for _ in range(6):
            with client.session(vocab_size=VOCAB) as session:
                assert session.reconnects == 0
        for _ in range(6):
            assert client.processors()


def test_no_address_is_right() -> None:
    listed = [free_address(), free_address()]
    with Client(listed) as client:
        with pytest.raises(ServerUnavailable, match=r"none of the servers .* can be reached"):
            client.session(vocab_size=VOCAB)
        with pytest.raises(ServerUnavailable, match="no connection to"):
            client.processors()


def test_a_document_that_changes(cluster: list[RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.servers.targets._MIN_AGE_SECONDS", 0.0)
    path = tmp_path / "servers.json"

    def write(*servers: RunningServer) -> None:
        path.write_text(json.dumps([{"targets": targets(list(servers)), "labels": {"job": "logitport"}}]))

    first, second, third = cluster
    write(first)
    monkeypatch.setenv(environment.TARGET, f"file:{path}")
    with environment.client() as client:
        engine = Engine(client, 1)
        engine.step()
        assert sessions_of(first) == [1, 2]
        write(second)
        kill(first)
        engine.step()
        assert sessions_of(second) == [1, 2]
        path.write_text("not JSON")
        with client.session(vocab_size=VOCAB):
            assert sessions_of(second)[0] == 2
        path.unlink()
        kill(second)
        threading.Timer(1.0, write, [third]).start()
        engine.step()
        assert sessions_of(third) == [1, 2]
        assert engine.wrong == 0


def test_registrations_are_on_the_server_of_each_session(cluster: list[RunningServer]) -> None:
    """These servers have no registry in common."""

    def use(session: Session, processor: Any) -> None:
        handle = session.add(Request([1], processors=[(processor, {"penalty": 2.0})]))
        logits = np.ones((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert logits[0, 1] == 0.5
        session.remove(handle)

    with Client(targets(cluster), timeout=200) as client:
        client.register(repetition_penalty(4).program, name="test/before")
        opened = [client.session(vocab_size=VOCAB, max_requests=4) for _ in range(6)]
        assert len([server for server in cluster if sessions_of(server)[0]]) > 1
        registered = client.register(repetition_penalty(5).program, name="test/after")
        for session in opened:
            use(session, "test/before")
            use(session, "test/after")
        kill(next(server for server in cluster if sessions_of(server)[0]))
        for session in opened:
            use(session, registered)
            use(session, "test/before")


def test_calls_go_to_another_server(cluster: list[RunningServer]) -> None:
    request = Request(processors=[("disallowed_tokens", {"token_ids": [3]})])
    logits = np.zeros((1, VOCAB), np.float32)
    with Client(",".join(targets(cluster))) as client:
        for _ in range(10):
            client.processors()
        kill(cluster[0])
        for _ in range(10):
            assert np.isinf(client.apply(logits, [request]).logits[0, 3])
            assert client.processor("disallowed_tokens").builtin


def test_all_addresses_of_a_name_over_tls(start_server: Callable[..., RunningServer], authority: Any) -> None:
    """The certificate has the name, and not the address that the name resolves to."""
    files = authority.issue_server()
    server = start_server("--tls-cert", str(files.cert), "--tls-key", str(files.key))
    port = server.target.rpartition(":")[2]
    with Client(f"dns:///localhost:{port}", tls=Tls(ca=authority.ca), token="secret") as client:
        client.session(vocab_size=VOCAB).close()
        assert client.processors()


def test_a_certificate_with_another_name(start_server: Callable[..., RunningServer], authority: Any) -> None:
    files = authority.issue("servers.example")
    server = start_server("--tls-cert", str(files.cert), "--tls-key", str(files.key))
    listed = [server.target, free_address()]
    with Client(listed, tls=Tls(ca=authority.ca)) as client, pytest.raises(ServerUnavailable):
        client.session(vocab_size=VOCAB)
    with Client(listed, tls=Tls(ca=authority.ca, server_name="servers.example")) as client:
        client.session(vocab_size=VOCAB).close()
        assert client.processors()


def test_what_another_client_has_deleted_stays_deleted(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    """The client that has registered it opens sessions, moves and reconnects, and restores its registrations then."""
    options = ("--no-entry-points", "--store", str(tmp_path / "store"))
    cluster = start_together(start_server, [options] * 2)
    with Client(targets(cluster), timeout=200) as client, Client(targets(cluster), timeout=200) as other:
        digest = client.register(repetition_penalty(4).program, name="test/mine").digest
        session = client.session(vocab_size=VOCAB)
        handle = session.add(Request([1]))
        other.delete(digest)
        client.session(vocab_size=VOCAB).close()
        # A server counts a closed session until the process of the principal has reported its end.
        wait_until(lambda: sum(sessions_of(server)[0] for server in cluster) == 1)
        kill(next(server for server in cluster if sessions_of(server)[0]))
        session.step({handle: []}).apply(np.zeros((1, VOCAB), np.float32))
        assert session.reconnects == 1
        for name in (digest, "test/mine"):
            wait_until(lambda name=name: not knows(client, name))  # the server may read the store's changes later


def knows(client: Client, name: str) -> bool:
    """Whether the client's server has this processor."""
    try:
        client.processor(name)
    except NotFound:
        return False
    return True
