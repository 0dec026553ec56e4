"""Limits per principal, and clients that are slow, blocked or disconnected."""

from __future__ import annotations

import queue
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
import torch

from logitport import Client, CustomLogitProcessor, LimitExceeded, Request, RequestsFailed, ServerUnavailable, errors
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc
from logitport_runner.in_thread import ThreadServer
from logitport_server.access import new_token, quotas, stalls
from logitport_server.transports import endpoint
from logitport_session.resources import session_limits
from tests.attacks.conftest import RawEngine, columns
from tests.conftest import free_address
from tests.toy_processors import AddOne, Unchanged
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 8
WIDE = 4 << 20  # 16 MiB of logits a row, more than gRPC and the kernel take for a client that does not read
PRINCIPALS = ("alice", "bob", "carol", "dave", "erin")
TOKENS = {name: new_token(name, ["apply", "register"]) for name in PRINCIPALS}
LIMITS = {
    "max_sessions_per_principal": 1,
    "max_tokens_per_request": 4,
    "max_processors_per_principal": 1,
    "max_payload_bytes": 3000,
    "keepalive_seconds": 2,
}


class Limited(NamedTuple):
    """A server in this process, with low limits."""

    target: str
    metrics_url: str


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("limits") / "tokens"
    path.write_text("\n".join(grant.line for _, grant in TOKENS.values()))
    return path


@pytest.fixture(scope="module")
def limited(tokens: Path) -> Iterator[Limited]:
    metrics = free_address()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(stalls, "STALL_SECONDS", 4.0)
        monkeypatch.setattr(session_limits, "STALL_SECONDS", 4.0)  # of processes of principals
        monkeypatch.setattr(quotas, "MAX_CALLS_PER_PRINCIPAL", 1)
        server = ThreadServer({"tokens": tokens, "metrics_listen": metrics, **LIMITS})
        yield Limited(server.target, f"http://{metrics}/metrics")
        server.stop()


@pytest.fixture
def clients(limited: Limited) -> Iterator[dict[str, Client]]:
    opened = {name: Client(limited.target, token=token) for name, (token, _) in TOKENS.items()}
    yield opened
    for client in opened.values():
        client.close()
    wait_until(lambda: sessions(limited) == 0)


def sessions(running: Limited) -> int:
    with urllib.request.urlopen(running.metrics_url, timeout=200) as answer:
        found = re.search(r"^logitport_sessions (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found
    return int(float(found[1]))


def metadata(name: str) -> Any:
    return (("authorization", f"Bearer {TOKENS[name][0]}"),)


def error_of(call: Any) -> common_pb2.Error:
    with pytest.raises(grpc.RpcError) as refused:
        next(call)
    trailing: Any = refused.value.trailing_metadata()  # type: ignore[attr-defined]
    return common_pb2.Error.FromString(dict(trailing)[errors.METADATA_KEY])


def test_calls_in_flight(limited: Limited, clients: dict[str, Client]) -> None:
    silent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with grpc.insecure_channel(limited.target) as channel:
        apply = channel.stream_stream("/logitport.v1.LogitProcessing/Apply")
        held = apply(iter(silent.get, b""), metadata=metadata("alice"))
        while is_free(clients["alice"]):  # until the server has received it
            if held.done():  # it was received during that check
                silent.put(b"")
                held = apply(iter(silent.get, b""), metadata=metadata("alice"))
            time.sleep(0.02)
        with pytest.raises(LimitExceeded, match=r"'alice' has 1 calls in flight, .*: wait for some to end"):
            clients["alice"].processors()
        assert clients["bob"].processors()
        error = error_of(held)
        assert error.code == common_pb2.ERROR_CODE_LIMIT_EXCEEDED
        assert "the call's message did not arrive within 4 s; send less at once" in (error.message)
        silent.put(b"")
    assert clients["alice"].processors()


def test_the_load(limited: Limited, clients: dict[str, Client]) -> None:
    with grpc.insecure_channel(limited.target) as channel:

        def load(name: str) -> tuple[int, int, bool]:
            request = processing_pb2.GetLoadRequest()
            stub = processing_pb2_grpc.LogitProcessingStub(channel)
            reply = stub.GetLoad(request, metadata=metadata(name), timeout=200)
            return reply.sessions, reply.requests, reply.accepts_sessions

        assert load("alice") == (0, 0, True)
        with clients["alice"].session(vocab_size=VOCAB) as session:
            for _ in range(2):
                session.add(Request([1]))
            assert load("alice") == (1, 2, False)
            assert load("bob") == (1, 2, True)
            with all_sessions(clients, "bob", "carol", "dave"):
                assert load("erin") == (4, 2, False)


def test_sessions(clients: dict[str, Client]) -> None:
    first = clients["alice"].session(vocab_size=VOCAB)
    with pytest.raises(LimitExceeded, match=r"'alice' has 1 sessions open, .* --max-sessions-per-principal"):
        clients["alice"].session(vocab_size=VOCAB)
    with all_sessions(clients, "bob", "carol", "dave"):
        with pytest.raises(LimitExceeded, match=r"the server has 4 sessions open, .* --max-sessions-per-principal: "):
            clients["erin"].session(vocab_size=VOCAB)
        first.close()
        wait_until(lambda: opens(clients["erin"]))


@contextmanager
def all_sessions(clients: dict[str, Client], *names: str) -> Iterator[None]:
    """Context with a session of each of these principals."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(clients[name].session(vocab_size=VOCAB))
        yield


def opens(client: Client) -> bool:
    try:
        client.session(vocab_size=VOCAB).close()
    except LimitExceeded:
        return False
    return True


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_token_ids_of_a_request(clients: dict[str, Client], transport: Any) -> None:
    ban = [("disallowed_tokens", {"token_ids": [3]})]
    with clients["alice"].session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        with pytest.raises(
            LimitExceeded, match=r"5 token ids in one request, .* accepts 4: .* --max-tokens-per-request"
        ):
            session.add(Request([1, 2], [3, 4, 5], processors=ban))
        growing, other = session.add(Request([1, 2, 3], processors=ban)), session.add(Request([1], processors=ban))
        session.step({growing: [4], other: [2]}).apply(torch.zeros(2, VOCAB))
        logits = torch.zeros(2, VOCAB)
        with pytest.raises(RequestsFailed) as failed:
            session.step({growing: [5], other: [3]}).apply(logits)
        assert {handle: type(error) for handle, error in failed.value.failures.items()} == {growing: LimitExceeded}
        assert logits[1].isneginf().nonzero().flatten().tolist() == [3]


class Large(CustomLogitProcessor):
    table = "x" * 3000

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits


def test_payloads_and_processors(clients: dict[str, Client]) -> None:
    with pytest.raises(LimitExceeded, match=r"is over the server's limit of 3000: .* --max-payload-bytes"):
        clients["alice"].register(Large)
    digest = clients["alice"].register(Unchanged).digest
    with pytest.raises(LimitExceeded, match=r"'alice' has registered 1 processors, .* --max-processors-per-principal"):
        clients["alice"].register(AddOne)
    clients["bob"].register(AddOne)
    clients["alice"].delete(digest)


def test_a_call_does_not_count_after_its_reply(clients: dict[str, Client]) -> None:
    """Its process may close its end of the stream later."""
    for _ in range(200):
        clients["alice"].apply(torch.zeros(1, VOCAB), [Request([1])])
        with pytest.raises(LimitExceeded, match=r"is over the server's limit of 3000"):
            clients["alice"].register(Large)


def test_call_rate(start_server: Callable[..., RunningServer], tokens: Path) -> None:
    running = start_server("--tokens", str(tokens), "--max-call-rate", "5/hour", "--metrics-listen", "127.0.0.1:0")
    with (
        Client(running.target, token=TOKENS["bob"][0]) as bob,
        Client(running.target, token=TOKENS["alice"][0]) as alice,
    ):
        session = alice.session(vocab_size=VOCAB, dtype=torch.float32)
        handle = session.add(Request([1]))
        for _ in range(4):
            alice.processors()
        for call in (alice.processors, lambda: alice.session(vocab_size=VOCAB)):
            with pytest.raises(LimitExceeded, match=r"'alice' makes more calls than 5/hour, .* --max-call-rate"):
                call()
        assert bob.processors()
        refused = 'logitport_calls_refused_total{code="LIMIT_EXCEEDED",principal="alice"} 2.0'
        assert refused in urllib.request.urlopen(running.metrics_url, timeout=200).read().decode()
        for _ in range(20):
            session.step({handle: [1]}).apply(torch.zeros(1, VOCAB))


def test_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "connection_limit", lambda *_: 2)
    running = ThreadServer({})
    host, _, port = running.target.rpartition(":")
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)), timeout=200)) for _ in range(5)]
        assert [bool(connection.recv(1)) for connection in opened] == [True, True, False, False, False]
    with Client(running.target) as client:
        wait_until(lambda: serves(client))  # the server detects closed connections with a delay
    running.stop()


def serves(client: Client) -> bool:
    try:
        return bool(client.processors())
    except ServerUnavailable:
        return False


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_an_engine_that_does_not_read(limited: Limited, transport: str) -> None:
    options = [("grpc.max_receive_message_length", -1)]
    engine = RawEngine(limited.target, metadata=metadata("alice"), options=options, vocab_size=WIDE)
    if transport == "local":
        engine.attach()
    request = Request([1], processors=[(Unchanged.to_str(), {})]).to_proto()
    assert not engine.send(add={"requests": [{"request": request}]}).added.failures
    assert not engine.send(step=columns((1,))).edits.failures
    assert sessions(limited) == 1
    engine.send_only(logits={"logits": {"datatype": "FP32", "shape": [1, WIDE], "raw": bytes(4 * WIDE)}})
    if engine.local is not None:
        end = select.poll()
        end.register(engine.local.connection, select.POLLRDHUP)
        assert end.poll(SECONDS * 1000), "the server has not closed the connection"
    else:
        wait_until(lambda: sessions(limited) == 0)
    engine.close()
    wait_until(lambda: sessions(limited) == 0)


def test_an_unreachable_client_machine(limited: Limited) -> None:
    """The connection stays open: neither side closes it."""
    code = """
import sys
from logitport import Client
client = Client(sys.argv[1], token=sys.argv[2])
session = client.session(vocab_size=8, transport=sys.argv[3])
print("open", flush=True)
sys.stdin.read()
"""
    for transport in ("grpc", "local"):
        with subprocess.Popen(
            [sys.executable, "-c", code, limited.target, TOKENS["alice"][0], transport],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as engine:
            try:
                assert engine.stdout is not None
                assert engine.stdout.readline() == "open\n"
                time.sleep(5)
                assert sessions(limited) == 1, "a client that is merely idle stays"
                engine.send_signal(signal.SIGSTOP)
                wait_until(lambda: sessions(limited) == 0)
            finally:
                engine.kill()


class SleepsSixSeconds(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        time.sleep(6)
        return logits


def test_an_abandoned_call_counts_until_its_work_has_ended(limited: Limited) -> None:
    """Otherwise calls with short deadlines could occupy all threads."""
    request = Request([1], processors=[(SleepsSixSeconds.to_str(), {})])
    token = TOKENS["alice"][0]
    with Client(limited.target, token=token) as hasty, Client(limited.target, token=token) as patient:
        hasty.processors()  # the client is connected
        hasty.timeout = 1.5
        with pytest.raises(ServerUnavailable):
            hasty.apply(torch.zeros(1, VOCAB), [request])
        with pytest.raises(LimitExceeded, match="calls in flight"):
            patient.processors()
        wait_until(lambda: is_free(patient))


def is_free(client: Client) -> bool:
    try:
        client.processors()
    except LimitExceeded:
        return False
    return True
