"""Guessing what admits: a local transport's token, a caller's token. A wrong guess tells nothing of the right one."""

from __future__ import annotations

import hashlib
import json
import socket
import statistics
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from logitport_proto import processing_pb2, registry_pb2, registry_pb2_grpc
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN = "logitport_" + "k" * 43


def changed(token: bytes) -> dict[str, bytes]:
    """Guesses that come ever closer."""
    return {
        "nothing of it": bytes(32),
        "half of it": token[:16] + bytes(16),
        "all but the last bit": token[:-1] + bytes([token[-1] ^ 1]),
        "all but the first bit": bytes([token[0] ^ 1]) + token[1:],
        "its bytes turned round": token[::-1],
    }


@pytest.mark.parametrize("guess", changed(bytes(32)))
def test_a_local_transport_closes_without_a_word(raw_engine: Any, local_transport_socket: Any, guess: str) -> None:
    engine = raw_engine()
    ticket = engine.opened.local_transport
    wrong = local_transport_socket(ticket, changed(ticket.access_token)[guess])
    assert wrong.connection.recv(100) == b""
    assert local_transport_socket(ticket).welcomed(), "a wrong guess must not use up the right token"


@pytest.mark.parametrize("length", [0, 1, 31])
def test_a_token_that_is_too_short_is_no_token(raw_engine: Any, local_transport_socket: Any, length: int) -> None:
    engine = raw_engine()
    short = local_transport_socket(engine.opened.local_transport, engine.opened.local_transport.access_token[:length])
    short.connection.shutdown(socket.SHUT_WR)
    assert short.connection.recv(100) == b""
    assert local_transport_socket(engine.opened.local_transport).welcomed()


def test_tokens_of_local_transports_have_nothing_in_common(raw_engine: Any) -> None:
    tokens = [raw_engine().opened.local_transport.access_token for _ in range(16)]
    assert all(len(token) == 32 for token in tokens)
    assert len(set(tokens)) == 16
    assert len({token[:4] for token in tokens}) == 16


def test_who_never_shows_a_token_is_sent_away(raw_engine: Any, local_transport_socket: Any) -> None:
    ticket = raw_engine().opened.local_transport
    silent = [local_transport_socket(ticket, b"") for _ in range(32)]
    assert local_transport_socket(ticket).welcomed(), "those who wait must not hold up the others"
    for waiting in silent:
        assert waiting.connection.recv(1) == b""


@pytest.fixture(scope="module")
def guarded(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that asks for tokens."""
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
def ask(guarded: Any) -> Any:
    """The status of one call, and what is told."""
    with grpc.insecure_channel(guarded.target) as channel:
        stub = registry_pb2_grpc.ProcessorRegistryStub(channel)

        def ask(*shown: tuple[str, str]) -> tuple[str, str]:
            try:
                stub.List(registry_pb2.ListRequest(), metadata=shown, timeout=SECONDS)
            except grpc.RpcError as error:
                return error.code().name, error.details()
            return "OK", ""

        assert ask(("authorization", f"Bearer {TOKEN}")) == ("OK", "")
        yield ask


NEARLY = [
    *(TOKEN[:-1], TOKEN + "k", TOKEN[:-1] + "j", "j" + TOKEN[1:], TOKEN.upper(), TOKEN.swapcase(), TOKEN[::-1]),
    *("", " ", "x", "logitport_", "*", "%", "null", "undefined", "' or '1'='1", "../../tokens", "x" * 5000),
    hashlib.sha256(TOKEN.encode()).hexdigest(),  # who has read the file has no token
]


@pytest.mark.parametrize("token", NEARLY)
def test_every_wrong_token_gets_the_same_answer(ask: Callable[..., tuple[str, str]], token: str) -> None:
    wrong = ask(("authorization", f"Bearer {token}"))
    assert wrong == ask(("authorization", "Bearer logitport_" + "z" * 43))
    assert wrong[0] == "UNAUTHENTICATED"
    assert not token or len(token) < 5 or token not in wrong[1]


@pytest.mark.parametrize(
    "shown",
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
def test_a_token_in_another_place_or_form_is_none(ask: Callable[..., tuple[str, str]], shown: Any) -> None:
    assert ask(*shown)[0] == "UNAUTHENTICATED"


def test_no_call_but_health_answers_a_stranger(guarded: Any) -> None:
    told = {}
    with grpc.insecure_channel(guarded.target) as channel:
        for module in (processing_pb2, registry_pb2, health_pb2, reflection_pb2):
            for service in module.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    call = channel.stream_stream(f"/{service.full_name}/{method.name}")(iter([b""]), timeout=SECONDS)
                    try:
                        next(iter(call))
                        told[method.full_name] = "OK"
                    except grpc.RpcError as error:
                        told[method.full_name] = error.code().name
                    call.cancel()
    answered = {name for name, status in told.items() if status != "UNAUTHENTICATED"}
    assert answered == {name for name in told if name.startswith("grpc.health.")}


def test_close_guesses_take_as_long_as_far_ones(ask: Callable[..., tuple[str, str]]) -> None:
    """Of calls that nothing got in the way of, and tried again: what a guess tells, it tells every time."""
    near, far = TOKEN[:-1] + "j", "x" * len(TOKEN)

    def differ() -> bool:
        seconds: dict[str, list[float]] = {near: [], far: []}
        for _ in range(150):
            for guess, taken in seconds.items():
                started = time.perf_counter()
                ask(("authorization", f"Bearer {guess}"))
                taken.append(time.perf_counter() - started)
        close, distant = (statistics.quantiles(taken, n=10)[0] for taken in seconds.values())
        return abs(close - distant) > 0.25 * max(close, distant)

    assert not all(differ() for _ in range(10))


def test_the_log_tells_no_token(guarded: Any, ask: Callable[..., tuple[str, str]]) -> None:
    ask(("authorization", f"Bearer {TOKEN}"))
    ask(("authorization", "Bearer logitport_guessed"))
    logged = guarded.log.read_text()
    assert TOKEN not in logged
    assert "logitport_guessed" not in logged
