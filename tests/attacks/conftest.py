"""A server under attack, what the attackers bring, and a bystander that must not notice."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch

from logitport import Client, CustomLogitProcessor, Request
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc
from tests.soak.processes import Held
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

VOCAB = 64
# What an allocator may keep of what an attack made it take.
_GROWTH_BYTES = 96 << 20


class Halve(CustomLogitProcessor):
    """What the bystander ships."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        return logits.mul_(0.5)


class Bystander:
    """An engine in the middle of its work, on both transports."""

    def __init__(self, target: str, chain: Sequence[tuple[Any, dict[str, Any]]], credentials: dict[str, Any]) -> None:
        self._client = Client(target, **credentials)
        self._halved = any(processor is Halve for processor, _ in chain)
        self._sessions = [
            self._client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport)
            for transport in ("grpc", "local")
        ]
        self._handles = [session.add(Request([3], processors=chain)) for session in self._sessions]
        self._told = 0

    def check(self) -> None:
        """One more step in each session is right, and in good time."""
        expected = torch.full((1, VOCAB), 0.5 if self._halved else 1.0)
        expected[0, [3, *map(_sampled, range(self._told))]] = -torch.inf
        for session, handle in zip(self._sessions, self._handles, strict=True):
            logits = torch.ones(1, VOCAB)
            session.step({handle: [_sampled(self._told - 1)] if self._told else []}).apply(logits)
            assert torch.equal(logits, expected), "the bystander's logits are wrong"
        self._told += 1

    def close(self) -> None:
        self._client.close()


def _sampled(number: int) -> int:
    return 10 + number % 50


def is_within(now: Held, before: Held) -> bool:
    return (
        now.descriptors <= before.descriptors
        and now.regions <= before.regions
        and now.resident_bytes <= before.resident_bytes + _GROWTH_BYTES
    )


class Peak:
    """The most memory that a process has held since this was made."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        (self._process / "clear_refs").write_text("5")
        self._before = self._read()

    def _read(self) -> int:
        peak = next(line for line in (self._process / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) << 10

    @property
    def growth_bytes(self) -> int:
        return self._read() - self._before


class LocalTransportSocket:
    """A local transport, byte by byte."""

    def __init__(self, local: processing_pb2.LocalTransport, token: bytes | None = None) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(SECONDS)
        self.connection.connect(local.socket_path)
        self.connection.sendall(local.access_token if token is None else token)

    def welcomed(self) -> bool:
        return self.connection.recv(1) == b"\1"

    def say(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        octets = frame.SerializeToString()
        self.connection.sendall(struct.pack("<I", len(octets)) + octets)
        return self.read()

    def read(self) -> processing_pb2.SessionResponse:
        self.descriptors: list[int] = []
        header, self.descriptors, _, _ = socket.recv_fds(self.connection, 4, 8)
        header += self.connection.recv(4 - len(header), socket.MSG_WAITALL)
        (length,) = struct.unpack("<I", header)
        return processing_pb2.SessionResponse.FromString(self.connection.recv(length, socket.MSG_WAITALL))

    def close(self) -> None:
        self.connection.close()


class RawEngine:
    """An engine that sends what it likes, over the gRPC stream, or over its local transport once that is taken.

    Attributes:
        opened: the reply to the first frame.
        local transport: the local transport, once it is taken.
    """

    def __init__(self, target: str, *, metadata: Any = (), **opening: Any) -> None:
        self._channel = grpc.insecure_channel(target)
        self._frames: queue.SimpleQueue[processing_pb2.SessionRequest | None] = queue.SimpleQueue()
        stub = processing_pb2_grpc.LogitProcessingStub(self._channel)
        self._replies = stub.Session(iter(self._frames.get, None), metadata=metadata)
        self._watchdog = threading.Timer(SECONDS, self._replies.cancel)
        self._watchdog.daemon = True
        self._watchdog.start()
        self.local: LocalTransportSocket | None = None
        self.seq = 0
        self.opened = self.send(open={"vocab_size": VOCAB, "datatype": "FP32", **opening}).opened

    def attach(self) -> LocalTransportSocket:
        self.local = LocalTransportSocket(self.opened.local_transport)
        assert self.local.welcomed()
        return self.local

    def send(self, **frame: Any) -> processing_pb2.SessionResponse:
        """The reply to a frame, numbered as it should be unless it has a `seq`."""
        self.seq = frame.pop("seq", self.seq + 1)
        message = processing_pb2.SessionRequest(seq=self.seq, **frame)
        if self.local is not None:
            return self.local.say(message)
        self._frames.put(message)
        return next(self._replies)

    def open_region(self, size_bytes: int, replaces: int = 0) -> tuple[int, int]:
        """A region's number, and the descriptor that came with it."""
        assert self.local is not None
        reply = self.send(open_region={"size_bytes": size_bytes, "replaces": replaces})
        assert reply.WhichOneof("frame") == "region_opened", reply.error.message
        (descriptor,) = self.local.descriptors
        return reply.region_opened.region_id, descriptor

    def close(self) -> None:
        self._watchdog.cancel()
        if self.local is not None:
            self.local.close()
        self._frames.put(None)
        self._replies.cancel()
        self._channel.close()


@pytest.fixture(scope="session")
def attacked(serving: Any) -> Iterator[Any]:
    """A server that accepts shipped processors; what attacks share."""
    with serving("--enable-custom-logit-processor") as running:
        yield running


@pytest.fixture(scope="session")
def chain() -> list[tuple[Any, dict[str, Any]]]:
    """What the bystander's requests run."""
    return [("no_repeat_ngram", {"ngram_size": 1}), (Halve, {})]


@pytest.fixture(scope="session")
def credentials() -> dict[str, Any]:
    """What the bystander's client shows."""
    return {}


@pytest.fixture(scope="module")
def bystander(attacked: Any, chain: Any, credentials: Any) -> Iterator[Bystander]:
    """Works from before the first attack of a file until after the last."""
    working = Bystander(attacked.target, chain, credentials)
    working.check()
    yield working
    working.close()


@pytest.fixture(autouse=True)
def unharmed(attacked: Any, bystander: Bystander) -> Iterator[None]:
    """After the attack: the server is up, the bystander's results are right, nothing is left, no defect was found."""
    before, logged = Held.by(attacked.process.pid), len(attacked.log.read_text())
    yield
    assert attacked.process.poll() is None, f"the server is gone: {attacked.log.read_text()[-2000:]}"
    bystander.check()
    wait_until(  # it hears of the end of a stream a little later
        lambda: is_within(Held.by(attacked.process.pid), before),
        lambda: f"the server holds {Held.by(attacked.process.pid)}, and held {before} before",
    )
    assert " ERROR logitport" not in attacked.log.read_text()[logged:], attacked.log.read_text()[logged:]


@pytest.fixture
def raw_engine(attacked: Any) -> Iterator[Callable[..., RawEngine]]:
    """Opens sessions by hand."""
    engines: list[RawEngine] = []

    def opened(**opening: Any) -> RawEngine:
        engines.append(RawEngine(attacked.target, **opening))
        return engines[-1]

    yield opened
    for engine in engines:
        engine.close()


@pytest.fixture
def local_transport_socket() -> Iterator[Callable[..., LocalTransportSocket]]:
    """Connects to a local transport by hand, with any token."""
    sockets: list[LocalTransportSocket] = []

    def connected(local: processing_pb2.LocalTransport, token: bytes | None = None) -> LocalTransportSocket:
        sockets.append(LocalTransportSocket(local, token))
        return sockets[-1]

    yield connected
    for connection in sockets:
        connection.close()


@pytest.fixture
def peak(attacked: Any) -> Peak:
    """How much memory the server takes from here on."""
    return Peak(attacked.process.pid)


@pytest.fixture(scope="session")
def code() -> Callable[[common_pb2.Error], str]:
    """The name of an error's code."""
    return lambda error: common_pb2.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_")
