"""A server that requires tokens."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from logitport import AccessDenied, Client, NameTaken, NotFound, Request, errors
from logitport_proto import admin_pb2, common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2
from logitport_server.access import new_token
from tests.toy_processors import AddOneInPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logitport.session import Session
    from tests.conftest import RunningServer

VOCAB = 8
SCOPES = {
    "alice": ["apply", "register"],
    "bob": ["apply", "register"],
    "engine": ["apply"],
    "ci": ["register"],
    "operator": ["admin"],
}
TOKENS = {name: new_token(name, scopes) for name, scopes in SCOPES.items()}
OURS = [registry_pb2.DESCRIPTOR.services_by_name["ProcessorRegistry"]]
OURS += [processing_pb2.DESCRIPTOR.services_by_name["LogitProcessing"]]
OURS += [admin_pb2.DESCRIPTOR.services_by_name["Admin"]]


@pytest.fixture(scope="module")
def token_server(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("access") / "tokens"
    path.write_text("\n".join(grant.line for _, grant in TOKENS.values()))
    with serving("--tokens", str(path), "--enable-custom-logit-processor", "--isolation", "none") as running:
        yield running


@pytest.fixture
def as_principal(token_server: RunningServer) -> Iterator[Callable[[str], Client]]:
    """Open clients with the token of a principal, by name."""
    opened: dict[str, Client] = {}

    def open_client(name: str) -> Client:
        if name not in opened:
            opened[name] = Client(token_server.target, token=TOKENS[name][0])
        return opened[name]

    yield open_client
    for client in opened.values():
        client.close()


def code_of(refused: pytest.ExceptionInfo[grpc.RpcError]) -> int:
    metadata = dict(refused.value.trailing_metadata())  # type: ignore[attr-defined]
    return common_pb2.Error.FromString(metadata[errors.METADATA_KEY]).code


def methods() -> list[Any]:
    return [method for service in OURS for method in service.methods]


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
@pytest.mark.parametrize("header", [None, "Bearer x", "Bearer", "Basic x"])
def test_every_method_requires_a_token(token_server: RunningServer, method: Any, header: str | None) -> None:
    """No method reads the message before it refuses: the messages sent here are invalid."""
    metadata = (("authorization", header),) if header else ()
    with grpc.insecure_channel(token_server.target) as channel:
        call = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
        for sent in (iter(()), iter([b"\xff no message"])):
            with pytest.raises(grpc.RpcError) as refused:
                next(call(sent, metadata=metadata, timeout=30))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
            assert code_of(refused) == common_pb2.ERROR_CODE_NOT_AUTHENTICATED


def test_health_is_open_and_reflection_is_not(token_server: RunningServer) -> None:
    list_request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(token_server.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as refused:
            next(reflect(iter([list_request])))
        assert code_of(refused) == common_pb2.ERROR_CODE_NOT_AUTHENTICATED
        token = TOKENS["operator"][0]
        listed = next(reflect(iter([list_request]), metadata=(("authorization", f"Bearer {token}"),)))
        assert {service.name for service in listed.list_services_response.service} >= {s.full_name for s in OURS}


def test_without_a_token_every_call_is_refused(token_server: RunningServer) -> None:
    for token in ("", "logitport_nobodys"):
        with Client(token_server.target, token=token) as client:
            for call in (client.processors, lambda client=client: client.session(vocab_size=VOCAB)):
                with pytest.raises(AccessDenied):
                    call()


def test_the_load_needs_the_scope_of_sessions(token_server: RunningServer) -> None:
    with grpc.insecure_channel(token_server.target) as channel:
        get_load = processing_pb2_grpc.LogitProcessingStub(channel).GetLoad
        for name, allowed in (("engine", True), ("ci", False), ("operator", False)):
            call = get_load.future(
                processing_pb2.GetLoadRequest(), metadata=(("authorization", f"Bearer {TOKENS[name][0]}"),), timeout=200
            )
            assert (call.code() is grpc.StatusCode.OK) == allowed, name
            assert allowed or call.code() is grpc.StatusCode.PERMISSION_DENIED


def test_calls_that_each_scope_allows(as_principal: Callable[[str], Client]) -> None:
    request = Request(processors=[("disallowed_tokens", {"token_ids": [1]})])
    calls: dict[str, Callable[[Client], Any]] = {
        "apply": lambda client: client.apply(torch.zeros(1, VOCAB), [request]),
        "session": lambda client: client.session(vocab_size=VOCAB).close(),
        "list": lambda client: client.processors(),
        "get": lambda client: client.processor("disallowed_tokens"),
        "register": lambda client: client.register(AddOneInPlace),
        "delete": lambda client: client.delete(client.register(AddOneInPlace).digest),
    }
    may = {
        "alice": {"apply", "session", "list", "get", "register", "delete"},
        "engine": {"apply", "session", "list", "get"},
        "ci": {"list", "get", "register", "delete"},
        "operator": {"list", "get"},
    }
    for name, allowed in may.items():
        for what, call in calls.items():
            if what in allowed:
                call(as_principal(name))
            else:
                with pytest.raises(AccessDenied, match=f"'{name}' may not call .*, which needs the scope"):
                    call(as_principal(name))


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_processors_of_another_principal(as_principal: Callable[[str], Client], transport: Any) -> None:
    alice, bob, operator = map(as_principal, ("alice", "bob", "operator"))
    digest = alice.register(AddOneInPlace, name="alice/plus").digest
    with pytest.raises(NameTaken, match="belongs to another principal"):
        bob.register(AddOneInPlace, name="alice/plus", replace=True)
    assert digest not in {ref.digest for ref in bob.processors()}
    for named in ("alice/plus", digest):
        request = Request([1], processors=[(named, {})])
        with pytest.raises(NotFound):
            bob.processor(named)
        with pytest.raises(NotFound):
            bob.delete(named)
        with alice.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
            session.add(request)
        session = bob.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport)
        with session, pytest.raises(NotFound):
            session.add(request)
    assert operator.processor("alice/plus").owner == "alice"
    alice.register(AddOneInPlace, shared=True)
    with bob.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        handle, logits = session.add(Request([1], processors=[("alice/plus", {})])), torch.zeros(1, VOCAB)
        session.step({handle: []}).apply(logits)
        assert torch.equal(logits, torch.ones(1, VOCAB))
        with pytest.raises(AccessDenied, match="belongs to another principal"):
            bob.delete("alice/plus")
        assert operator.delete("alice/plus") == ("alice/plus",)
        session.step({handle: [1]}).apply(logits)  # the request was admitted with this processor
        assert torch.equal(logits, torch.full((1, VOCAB), 2.0))
    alice.delete(digest)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_an_engine_without_the_scope_cannot_ship_processors(
    as_principal: Callable[[str], Client], transport: Any
) -> None:
    with as_principal("engine").session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        with pytest.raises(AccessDenied, match="'engine' may not ship a processor with a request"):
            session.add(Request([1], processors=[(AddOneInPlace, {})]))
        assert session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})]))


def test_revoking_a_token_ends_its_open_sessions(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = {name: TOKENS[name][1].line for name in ("alice", "engine")}
    path.write_text("\n".join(lines.values()))
    running = start_server("--tokens", str(path))
    with (
        Client(running.target, token=TOKENS["alice"][0]) as alice,
        Client(running.target, token=TOKENS["engine"][0]) as e,
    ):
        sessions = [
            alice.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport)  # type: ignore[arg-type]
            for transport in ("grpc", "local")
        ]
        kept = e.session(vocab_size=VOCAB, dtype=torch.float32)
        handle = kept.add(Request([1]))
        replacement = tmp_path / "new"
        replacement.write_text(lines["engine"])
        os.replace(replacement, path)
        running.process.send_signal(signal.SIGHUP)
        for session in sessions:
            with pytest.raises(AccessDenied, match=r"^127\.0\.0\.1:\d+: this token is unknown, expired or revoked"):
                use_until_error(session)
        with pytest.raises(AccessDenied):
            alice.processors()
        kept.step({handle: []}).apply(torch.zeros(1, VOCAB))
    assert "reloaded 1 tokens and certificates" in running.log.read_text()


def use_until_error(session: Session) -> NoReturn:
    while True:
        session.remove(session.add(Request([1])))
        time.sleep(0.01)
