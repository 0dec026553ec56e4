"""Guessing tokens of local transports and callers. A wrong guess reveals nothing about the correct token."""

from __future__ import annotations

import hashlib
import json
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from logitport.errors import METADATA_KEY
from logitport_proto import admin_pb2, common_pb2, processing_pb2, registry_pb2, registry_pb2_grpc
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "logitport_" + "k" * 43


def changed(token: bytes) -> dict[str, bytes]:
    """Return guesses that are increasingly similar to the token."""
    return {
        "nothing of it": bytes(32),
        "half of it": token[:16] + bytes(16),
        "all but the last bit": token[:-1] + bytes([token[-1] ^ 1]),
        "all but the first bit": bytes([token[0] ^ 1]) + token[1:],
        "its bytes reversed": token[::-1],
    }


@pytest.mark.parametrize("guess", changed(bytes(32)))
def test_a_local_transport_closes_without_an_error(raw_engine: Any, local_transport_socket: Any, guess: str) -> None:
    engine = raw_engine()
    ticket = engine.opened.local_transport
    wrong = local_transport_socket(ticket, changed(ticket.access_token)[guess])
    assert wrong.connection.recv(100) == b""
    assert local_transport_socket(ticket).is_accepted(), "a wrong guess must not use up the right token"


@pytest.mark.parametrize("length", [0, 1, 31])
def test_a_token_that_is_too_short(raw_engine: Any, local_transport_socket: Any, length: int) -> None:
    engine = raw_engine()
    short = local_transport_socket(engine.opened.local_transport, engine.opened.local_transport.access_token[:length])
    short.connection.shutdown(socket.SHUT_WR)
    assert short.connection.recv(100) == b""
    assert local_transport_socket(engine.opened.local_transport).is_accepted()


def test_a_token_admits_one_connection(raw_engine: Any, local_transport_socket: Any) -> None:
    ticket = raw_engine().opened.local_transport
    assert Path(ticket.socket_path).parent.stat().st_mode & 0o077 == 0, "only its owner can use the socket"
    assert local_transport_socket(ticket).is_accepted()
    assert not local_transport_socket(ticket).is_accepted()


def test_tokens_of_local_transports_are_independent(raw_engine: Any) -> None:
    tokens = [raw_engine().opened.local_transport.access_token for _ in range(16)]
    assert all(len(token) == 32 for token in tokens)
    assert len(set(tokens)) == 16
    assert len({token[:4] for token in tokens}) == 16


def test_connections_without_a_token_are_closed(raw_engine: Any, local_transport_socket: Any) -> None:
    ticket = raw_engine().opened.local_transport
    silent = [local_transport_socket(ticket, b"") for _ in range(32)]
    assert local_transport_socket(ticket).is_accepted(), "waiting connections must not block others"
    for waiting in silent:
        assert waiting.connection.recv(1) == b""


@pytest.fixture(scope="module")
def guarded(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that requires tokens."""
    path: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    others = [f"logitport_{number:043}" for number in range(50)]
    tokens = {TOKEN: "engine"} | {token: f"other{number}" for number, token in enumerate(others)}
    path.write_text(
        "\n".join(
            json.dumps({"name": name, "scopes": ["apply"], "sha256": hashlib.sha256(token.encode()).hexdigest()})
            for token, name in tokens.items()
        )
    )
    path.chmod(0o600)
    with serving("--tokens", str(path), "--max-call-rate", "100000/second") as running:
        yield running


@pytest.fixture(scope="module")
def call_with(guarded: Any) -> Any:
    """Makes a call with this metadata. Returns the status and the details."""
    with grpc.insecure_channel(guarded.target) as channel:
        stub = registry_pb2_grpc.ProcessorRegistryStub(channel)

        def call_with(*metadata: tuple[str, str]) -> tuple[str, str]:
            try:
                stub.List(registry_pb2.ListRequest(), metadata=metadata, timeout=SECONDS)
            except grpc.RpcError as error:
                return error.code().name, error.details()
            return "OK", ""

        assert call_with(("authorization", f"Bearer {TOKEN}")) == ("OK", "")
        yield call_with


NEARLY = [
    *(TOKEN[:-1], TOKEN + "k", TOKEN[:-1] + "j", "j" + TOKEN[1:], TOKEN.upper(), TOKEN.swapcase(), TOKEN[::-1]),
    *("", " ", "x", "logitport_", "*", "%", "null", "undefined", "' or '1'='1", "../../tokens", "x" * 5000),
    hashlib.sha256(TOKEN.encode()).hexdigest(),  # the hash in the file is not a token
]


@pytest.mark.parametrize("token", NEARLY)
def test_every_wrong_token_gets_the_same_error(call_with: Callable[..., tuple[str, str]], token: str) -> None:
    wrong = call_with(("authorization", f"Bearer {token}"))
    assert wrong == call_with(("authorization", "Bearer logitport_" + "z" * 43))
    assert wrong[0] == "UNAUTHENTICATED"
    assert not token or len(token) < 5 or token not in wrong[1]


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")),
        (("authorization", "Bearer x"), ("authorization", f"Bearer {TOKEN}")),
        (("x-authorization", f"Bearer {TOKEN}"),),
        (("token", TOKEN),),
        (("cookie", f"authorization={TOKEN}"),),
        (("authorization", f"Bearer {TOKEN},Bearer x"),),
    ],
)
def test_a_token_in_another_place_or_form_is_refused(call_with: Callable[..., tuple[str, str]], metadata: Any) -> None:
    assert call_with(*metadata)[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("sent", [[], [b"\xff no message"]], ids=["no message", "an invalid message"])
def test_only_health_calls_need_no_token(guarded: Any, sent: list[bytes]) -> None:
    """The others are refused before their message is read."""
    statuses = {}
    with grpc.insecure_channel(guarded.target) as channel:
        for module in (processing_pb2, registry_pb2, admin_pb2, health_pb2, reflection_pb2):
            for service in module.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    call = channel.stream_stream(f"/{service.full_name}/{method.name}")(iter(sent), timeout=SECONDS)
                    with pytest.raises(grpc.RpcError) as refused:
                        next(iter(call))
                    statuses[method.full_name] = refused.value.code().name
                    if service.full_name.startswith("logitport."):
                        error = common_pb2.Error.FromString(dict(refused.value.trailing_metadata())[METADATA_KEY])
                        assert error.code == common_pb2.ERROR_CODE_NOT_AUTHENTICATED
                    call.cancel()
    answered = {name for name, status in statuses.items() if status != "UNAUTHENTICATED"}
    assert answered == {name for name in statuses if name.startswith("grpc.health.")}


def test_the_time_of_a_refusal_does_not_depend_on_the_guess(call_with: Callable[..., tuple[str, str]]) -> None:
    """Compares the fastest calls, which had no interference. A real difference shows in every one of ten trials."""
    similar, different = TOKEN[:-1] + "j", "x" * len(TOKEN)

    def differ() -> bool:
        seconds: dict[str, list[float]] = {similar: [], different: []}
        for _ in range(150):
            for guess, taken in seconds.items():
                started = time.perf_counter()
                call_with(("authorization", f"Bearer {guess}"))
                taken.append(time.perf_counter() - started)
        close, distant = (statistics.quantiles(taken, n=10)[0] for taken in seconds.values())
        return abs(close - distant) > 0.25 * max(close, distant)

    assert not all(differ() for _ in range(10))


def test_tokens_are_not_logged(guarded: Any, call_with: Callable[..., tuple[str, str]]) -> None:
    call_with(("authorization", f"Bearer {TOKEN}"))
    call_with(("authorization", "Bearer logitport_guessed"))
    logged = guarded.log.read_text()
    assert TOKEN not in logged
    assert "logitport_guessed" not in logged
