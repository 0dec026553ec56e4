"""A server that requires tokens. tests/attacks has calls without a valid one, and attempts at processors of others."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import pytest
import torch
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from logitport import AccessDenied, Client, Request
from logitport_proto import processing_pb2, processing_pb2_grpc
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
    "engine": ["apply"],
    "ci": ["register"],
    "operator": ["admin"],
}
TOKENS = {name: new_token(name, scopes) for name, scopes in SCOPES.items()}


@pytest.fixture(scope="module")
def token_server(serving: Callable[..., Any]) -> Iterator[RunningServer]:
    options = ("--enable-custom-logit-processor", "--isolation", "none")
    with serving(*options, grants=[grant for _, grant in TOKENS.values()]) as running:
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


def test_the_load_needs_the_scope_of_sessions_and_reflection_any_token(token_server: RunningServer) -> None:
    with grpc.insecure_channel(token_server.target) as channel:
        get_load = processing_pb2_grpc.LogitProcessingStub(channel).GetLoad
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for name, status in (("engine", "OK"), ("ci", "PERMISSION_DENIED"), ("operator", "PERMISSION_DENIED")):
            metadata = (("authorization", f"Bearer {TOKENS[name][0]}"),)
            call = get_load.future(processing_pb2.GetLoadRequest(), metadata=metadata, timeout=200)
            assert call.code().name == status, name
            listing = reflection_pb2.ServerReflectionRequest(list_services="")
            assert next(reflect(iter([listing]), metadata=metadata)).list_services_response.service


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
