"""The service Admin, as `ServerClient` calls it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch

from logitport import (
    AccessDenied,
    Client,
    CustomLogitProcessor,
    Request,
    RequestsFailed,
    ServerUnavailable,
)
from logitport_proto import admin_pb2, admin_pb2_grpc
from logitport_server.access.token_file import new_token
from logitport_server.version import VERSION
from tests.toy_processors import AddOneInPlace
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.client.server_client import ServerClient
    from tests.conftest import RunningServer

VOCAB = 32
TOKENS = {
    "engine": new_token("engine", ["apply", "register"]),
    "operator": new_token("operator", ["admin"]),
}


class Exits(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        os._exit(3)


@pytest.fixture(scope="module")
def strict(serving: Callable[..., Any]) -> Iterator[RunningServer]:
    """Requires tokens, and quarantines a processor at its first failure."""
    options = ("--enable-custom-logit-processor", "--quarantine-after", "1", "--max-workers", "8")
    with serving(*options, grants=[grant for _, grant in TOKENS.values()]) as running:
        yield running


@pytest.fixture
def engine(strict: RunningServer) -> Iterator[Client]:
    with Client(strict.target, token=TOKENS["engine"][0]) as client:
        yield client


@pytest.fixture
def operated(strict: RunningServer) -> Iterator[ServerClient]:
    with Client(strict.target, token=TOKENS["operator"][0]) as client:
        yield client.servers()[0]


def test_the_status_of_a_server(operated: ServerClient, engine: Client) -> None:
    before = operated.status()
    assert (before.version, before.device, before.isolation, before.draining) == (VERSION, "cpu", "process", False)
    assert before.accepts_code
    assert before.accepts_programs
    assert before.requires_authentication
    assert not before.requires_signatures
    assert (before.max_sessions, before.max_registered_processors, before.max_workers) == (256, 1024, 8)
    assert before.installed_processors == sum(one.builtin for one in operated.processors())
    assert before.uptime_seconds > 0

    ref = engine.register(AddOneInPlace, name="team/one")
    request = Request(prompt_token_ids=[1], processors=[(ref, {})], tenant="acme")
    engine.apply(torch.zeros(1, VOCAB), [request])
    with engine.session(vocab_size=VOCAB) as session:
        handle = session.add(request)
        session.step({handle: []}).apply(torch.zeros(1, VOCAB))
        after = operated.status()
        assert (after.sessions, after.movable_sessions, after.requests) == (1, 0, 1)
        assert after.registered_processors == before.registered_processors + 1
        assert after.uptime_seconds > before.uptime_seconds
        assert after.loader_misses > before.loader_misses
        assert after.worker_count == len(after.workers) == 1
        (worker,) = after.workers
        assert worker.state == "ready"
        assert worker.processors == (ref.display_name,)
        assert (worker.owner, worker.principal, worker.tenant) == ("engine", "engine", "acme")
        assert worker.memory_bytes > 1 << 20
        assert worker.process_id > 1
        # A step is counted after its reply was sent.
        wait_until(lambda: operated.status().steps == before.steps + 2)
        (times,) = [one for one in operated.status().processor_times if one.processor == ref.display_name]
        assert len(times.counts) == len(times.bounds_seconds) + 1
        assert (times.counts[-1], times.rows) == (2, 2)
        assert 0 < times.total_seconds < after.uptime_seconds
    engine.delete(ref.digest)
    wait_until(lambda: [one.state for one in operated.status().workers] == ["idle"])


def test_the_open_sessions(operated: ServerClient, engine: Client) -> None:
    options: dict[str, Any] = {"vocab_size": VOCAB, "model_name": "tiny", "device": "cuda:3", "max_requests": 4}
    with (
        engine.session(engine="toy 1.0", dtype="bfloat16", transport="local", **options) as local,
        engine.session(engine="\x1b[31mred", transport="grpc", **options) as other,
    ):
        handle = local.add(Request(prompt_token_ids=[1]))
        for _ in range(3):
            local.step({handle: []}).apply(torch.zeros(1, VOCAB, dtype=torch.bfloat16))
        first, second = operated.sessions()
        assert (first.session_id, second.session_id) == (local.session_id, other.session_id)
        assert (first.engine, first.model_name, first.device, first.datatype) == ("toy 1.0", "tiny", "cuda:3", "BF16")
        assert (first.principal, first.transport, first.vocab_size) == ("engine", "local", VOCAB)
        assert (first.requests, first.pending_requests, first.max_requests, first.steps) == (1, 0, 4, 3)
        assert first.last_step_age_seconds is not None
        assert 0 <= first.last_step_age_seconds <= first.age_seconds
        assert first.peer.startswith("127.0.0.1:")
        assert not first.can_move
        assert (second.engine, second.transport, second.steps) == ("\x1b[31mred", "grpc", 0)
        assert second.last_step_age_seconds is None
        assert second.age_seconds < first.age_seconds
    wait_until(lambda: not list(operated.sessions()))


def test_sessions_come_in_pages(strict: RunningServer, engine: Client) -> None:
    metadata = (("authorization", f"Bearer {TOKENS['operator'][0]}"),)
    with grpc.insecure_channel(strict.target) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)

        def page(size: int, token: str = "") -> admin_pb2.ListSessionsResponse:
            request = admin_pb2.ListSessionsRequest(page_size=size, page_token=token)
            return stub.ListSessions(request, metadata=metadata, timeout=60)

        sessions = [engine.session(vocab_size=VOCAB) for _ in range(3)]
        one = page(2)
        two = page(2, one.next_page_token)
        assert [info.session_id for info in (*one.sessions, *two.sessions)] == [one.session_id for one in sessions]
        assert two.next_page_token == ""
        for size, token in ((-1, ""), (0, "x"), (0, "-1"), (0, "9" * 100)):
            with pytest.raises(grpc.RpcError) as refused:
                page(size, token)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for session in sessions:
            session.close()


def test_a_quarantine_is_listed_and_lifted(operated: ServerClient, engine: Client) -> None:
    ref = engine.register(Exits, name="team/exits")
    lost = operated.status().workers_lost
    request = Request(prompt_token_ids=[1], processors=[(ref, {})], tenant="acme")
    with pytest.raises(RequestsFailed):
        engine.apply(torch.zeros(1, VOCAB), [request])
    status = operated.status()
    assert status.workers_lost == lost + 1
    assert status.quarantine_count == 1
    (quarantine,) = status.quarantines
    assert (quarantine.digest, quarantine.names) == (ref.digest, ("team/exits",))
    assert (quarantine.owner, quarantine.principal, quarantine.tenant) == ("engine", "engine", "acme")
    assert "ended with status 3" in quarantine.reason
    assert operated.processor("team/exits").quarantined == quarantine.reason
    lifted = operated.unquarantine("team/exits")
    assert (lifted.processor.digest, lifted.was_quarantined) == (ref.digest, True)
    assert not operated.unquarantine("team/exits").was_quarantined
    assert operated.status().quarantines == ()
    assert operated.delete(ref.digest) == ("team/exits",)


def test_all_calls_need_the_scope_admin(engine: Client) -> None:
    (server,) = engine.servers()
    for call in (server.status, server.drain, lambda: list(server.sessions()), lambda: server.unquarantine("team/x")):
        with pytest.raises(AccessDenied):
            call()


def test_each_server_of_a_target_is_called(server: RunningServer, server_without_flag: RunningServer) -> None:
    with Client(f"{server.target},127.0.0.1:1,{server_without_flag.target}") as client:
        with_flag, missing, without_flag = client.servers()
        assert [one.target for one in (with_flag, missing)] == [server.target, "127.0.0.1:1"]
        assert with_flag.status().accepts_code
        assert not without_flag.status().accepts_code
        with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1"):
            missing.status()
        with_flag.register(AddOneInPlace, name="team/of-one-server")
        names = [{name for ref in one.processors() for name in ref.names} for one in (with_flag, without_flag)]
        assert ["team/of-one-server" in some for some in names] == [True, False]
        with_flag.delete("team/of-one-server")
    with pytest.raises(ServerUnavailable, match="closed"):
        client.servers()
    with pytest.raises(ServerUnavailable, match="closed"):
        with_flag.status()
