"""Fixtures for attacks: a server, raw clients, and a bystander session that must not be affected."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch

from logitport import Client, Request
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc
from tests.processes import Usage
from tests.toy_processors import HalveInPlace
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

VOCAB = 64
# Memory that the allocators of the front door and of the attacker's process may keep after an attack.
_GROWTH_BYTES = 256 << 20


def int32(*values: int) -> bytes:
    """Return a column of little-endian integers."""
    return struct.pack(f"<{len(values)}i", *values)


def columns(*prompts: Sequence[int], **others: bytes) -> dict[str, bytes]:
    """Return the columns of a step of the requests in slots 0, 1, ..., whose histories are these prompts."""
    return {
        "slots": int32(*range(len(prompts))),
        "generations": bytes(4 * len(prompts)),
        "base_lengths": int32(*map(len, prompts)),
        "history_crcs": b"".join(struct.pack("<I", zlib.crc32(int32(*prompt))) for prompt in prompts),
        **others,
    }


class Bystander:
    """An engine with a running request on each transport."""

    def __init__(self, target: str, chain: Sequence[tuple[Any, dict[str, Any]]], credentials: dict[str, Any]) -> None:
        self._client = Client(target, **credentials)
        self._halved = any(processor is HalveInPlace for processor, _ in chain)
        self._sessions = [
            self._client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport)
            for transport in ("grpc", "local")
        ]
        self._handles = [session.add(Request([3], processors=chain)) for session in self._sessions]
        self._num_steps = 0

    def check(self) -> None:
        """Run one more step in each session and check its logits."""
        expected = torch.full((1, VOCAB), 0.5 if self._halved else 1.0)
        expected[0, [3, *map(_sampled, range(self._num_steps))]] = -torch.inf
        for session, handle in zip(self._sessions, self._handles, strict=True):
            logits = torch.ones(1, VOCAB)
            session.step({handle: [_sampled(self._num_steps - 1)] if self._num_steps else []}).apply(logits)
            assert torch.equal(logits, expected), "the bystander's logits are wrong"
        self._num_steps += 1

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._client.close()
        # A closed session keeps a region and its socket, and pytest this object.
        self._sessions.clear()
        self._handles.clear()


def _sampled(number: int) -> int:
    return 10 + number % 50


def is_within(usage: Usage, before: Usage) -> bool:
    return (
        usage.descriptors <= before.descriptors
        and usage.regions <= before.regions
        and usage.resident_bytes <= before.resident_bytes + _GROWTH_BYTES
    )


class Peak:
    """The peak memory of a process since the creation of this object."""

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
    """A raw connection to a local transport."""

    def __init__(self, local: processing_pb2.LocalTransport, token: bytes | None = None) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(SECONDS)
        self.connection.connect(local.socket_path)
        self.connection.sendall(local.access_token if token is None else token)

    def is_accepted(self) -> bool:
        return self.connection.recv(1) == b"\1"

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        data = frame.SerializeToString()
        self.connection.sendall(struct.pack("<I", len(data)) + data)

    def read(self) -> processing_pb2.SessionResponse:
        self.descriptors: list[int] = []
        header, self.descriptors, _, _ = socket.recv_fds(self.connection, 4, 8)
        header += self.connection.recv(4 - len(header), socket.MSG_WAITALL)
        (length,) = struct.unpack("<I", header)
        return processing_pb2.SessionResponse.FromString(self.connection.recv(length, socket.MSG_WAITALL))

    def close(self) -> None:
        self.connection.close()


class RawEngine:
    """An engine that sends arbitrary frames, over gRPC, or over its local transport after `attach`.

    Attributes:
        opened: the reply to the first frame.
        local: the local transport; None before `attach`.
    """

    def __init__(self, target: str, *, metadata: Any = (), options: Any = (), **opening: Any) -> None:
        self._channel = grpc.insecure_channel(target, options=options)
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
        assert self.local.is_accepted()
        return self.local

    def send(self, **frame: Any) -> processing_pb2.SessionResponse:
        """Send a frame with the next number, or with `seq`. Returns the reply."""
        self.send_only(**frame)
        return next(self._replies) if self.local is None else self.local.read()

    def send_only(self, **frame: Any) -> None:
        """Send a frame, and leave its reply unread."""
        self.seq = frame.pop("seq", self.seq + 1)
        message = processing_pb2.SessionRequest(seq=self.seq, **frame)
        if self.local is None:
            self._frames.put(message)
        else:
            self.local.send(message)

    def open_region(self, size_bytes: int, replaces: int = 0) -> tuple[int, int]:
        """Open a region. Returns its number and its descriptor."""
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
    """A server that accepts shipped processors, shared by all attacks."""
    with serving("--enable-custom-logit-processor") as running:
        yield running


@pytest.fixture(scope="session")
def chain() -> list[tuple[Any, dict[str, Any]]]:
    """The chain of the bystander's requests."""
    return [("no_repeat_ngram", {"ngram_size": 1}), (HalveInPlace, {})]


@pytest.fixture(scope="session")
def credentials() -> dict[str, Any]:
    """The credentials of the bystander's client."""
    return {}


@pytest.fixture(scope="module")
def bystander(attacked: Any, chain: Any, credentials: Any) -> Iterator[Bystander]:
    """The bystander of all attacks in one file."""
    bystander = Bystander(attacked.target, chain, credentials)
    bystander.check()
    yield bystander
    bystander.close()


@pytest.fixture(autouse=True)
def unharmed(attacked: Any, bystander: Bystander) -> Iterator[None]:
    """Check after each attack: the server runs, the bystander works, nothing leaked, and no error was logged."""
    before, logged = Usage.of(attacked.process.pid), len(attacked.log.read_text())
    yield
    assert attacked.process.poll() is None, f"the server has ended: {attacked.log.read_text()[-2000:]}"
    bystander.check()
    wait_until(  # the server notices the end of a stream with a delay
        lambda: is_within(Usage.of(attacked.process.pid), before),
        lambda: f"the server uses {Usage.of(attacked.process.pid)}, before the attack it used {before}",
    )
    assert " ERROR logitport" not in attacked.log.read_text()[logged:], attacked.log.read_text()[logged:]


@pytest.fixture
def raw_engine(attacked: Any) -> Iterator[Callable[..., RawEngine]]:
    """Opens sessions of raw engines."""
    engines: list[RawEngine] = []

    def open_engine(**opening: Any) -> RawEngine:
        engines.append(RawEngine(attacked.target, **opening))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def local_transport_socket() -> Iterator[Callable[..., LocalTransportSocket]]:
    """Connects to a local transport with any token."""
    sockets: list[LocalTransportSocket] = []

    def connect(local: processing_pb2.LocalTransport, token: bytes | None = None) -> LocalTransportSocket:
        sockets.append(LocalTransportSocket(local, token))
        return sockets[-1]

    yield connect
    for connection in sockets:
        connection.close()


@pytest.fixture
def peak(attacked: Any) -> Peak:
    """The peak memory of the server from here on."""
    return Peak(attacked.process.pid)


@pytest.fixture(scope="session")
def code() -> Callable[[common_pb2.Error], str]:
    """Returns the name of an error's code."""
    return lambda error: common_pb2.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_")
