"""The local transport: access, frames, and clients that send invalid data or disconnect."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, LimitExceeded, Request
from logitport.session.transports.local import LocalTransport
from logitport_proto import processing_pb2, processing_pb2_grpc
from tests.descriptors import descriptors
from tests.toy_processors import HalveInPlace
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 1000
OPEN = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")


class RawSession:
    """A session opened by raw gRPC frames, with its local transport not yet connected."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._end = threading.Event()
        self._replies = processing_pb2_grpc.LogitProcessingStub(self._channel).Session(self._frames())
        self.local = next(self._replies).opened.local_transport

    def _frames(self) -> Iterator[processing_pb2.SessionRequest]:
        yield processing_pb2.SessionRequest(seq=1, open=OPEN)
        self._end.wait()

    def close(self) -> None:
        self._end.set()
        self._replies.cancel()
        self._channel.close()


@pytest.fixture
def raw(server: Any) -> Iterator[RawSession]:
    session = RawSession(server.target)
    yield session
    session.close()


def connect(local: processing_pb2.LocalTransport, token: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SECONDS)
    connection.connect(local.socket_path)
    connection.sendall(token)
    return connection


def exchange(connection: socket.socket, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
    data = frame.SerializeToString()
    connection.sendall(struct.pack("<I", len(data)) + data)
    (length,) = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))
    return processing_pb2.SessionResponse.FromString(connection.recv(length, socket.MSG_WAITALL))


def test_a_client_on_this_host_uses_it_by_default(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        assert session.transport == "local"
    with client.session(vocab_size=VOCAB, transport="grpc") as session:
        assert session.transport == "grpc"


def test_logits_in_the_buffer_are_edited_in_place(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as session:
        handles = [session.add(Request(processors=[(HalveInPlace, {})])) for _ in range(3)]
        logits = session.logits_buffer(3)
        logits.fill_(8.0)
        address = logits.data_ptr()
        session.step({handle: [] for handle in handles}).apply(logits)
        assert (logits == 4.0).all()
        assert session.logits_buffer(2).data_ptr() == address
        session.step({handles[2]: [], handles[0]: []}).apply(session.logits_buffer(2))
        assert logits[:, 0].tolist() == [2.0, 2.0, 4.0]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_only_the_rows_that_are_read_are_copied(client: Client, kind: str, transport: Any) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        reads = [session.add(Request(processors=[(HalveInPlace, {})])) for _ in range(2)]
        plain = [session.add(Request()) for _ in range(2)]
        before = torch.randn(4, VOCAB)
        logits: Any = before.clone() if kind == "torch" else before.numpy().copy()
        session.step({plain[0]: [], reads[0]: [], plain[1]: [], reads[1]: []}).apply(logits)
        after = torch.as_tensor(logits)
        assert torch.equal(after[::2], before[::2])
        assert torch.equal(after[1::2], before[1::2] / 2)


def test_without_torch_the_buffer_is_an_array(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype="float16", transport="local") as session:
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        logits = session.logits_buffer(1)
        assert isinstance(logits, np.ndarray)
        session.step({handle: []}).apply(logits)
        assert np.isneginf(logits[0, 7])
        assert np.isfinite(np.delete(logits[0], 7)).all()


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("placed", ["in the buffer", "elsewhere"])
def test_arrays_of_bfloat16(client: Client, transport: Any, placed: str) -> None:
    with client.session(vocab_size=VOCAB, dtype=ml_dtypes.bfloat16, transport=transport) as session:
        read = session.add(Request(processors=[(HalveInPlace, {})]))
        free = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        logits = session.logits_buffer(2)
        assert logits.dtype == ml_dtypes.bfloat16
        logits = logits if placed == "in the buffer" else logits.copy()
        logits[...] = 3
        session.step({read: [], free: []}).apply(logits)
        assert (logits[0] == 1.5).all()
        assert np.isneginf(logits[1, 7])
        assert (np.delete(logits[1], 7) == 3).all()


def test_a_token_admits_one_connection(raw: RawSession) -> None:
    with connect(raw.local, raw.local.access_token) as first:
        assert first.recv(1) == b"\1"
        with connect(raw.local, raw.local.access_token) as second:
            assert second.recv(1) == b""


@pytest.mark.parametrize("token", [bytes(32), b"\xff" * 32, b"short"])
def test_a_wrong_token_is_refused(raw: RawSession, token: bytes) -> None:
    with connect(raw.local, token) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_only_the_owner_can_use_the_socket(raw: RawSession) -> None:
    assert Path(raw.local.socket_path).parent.stat().st_mode & 0o077 == 0


def test_memory_is_not_shared_over_grpc(server: Any) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = processing_pb2_grpc.LogitProcessingStub(channel)
        opens_region = processing_pb2.SessionRequest(seq=2, open_region=processing_pb2.OpenRegion(size_bytes=8))
        replies = list(stub.Session(iter([processing_pb2.SessionRequest(seq=1, open=OPEN), opens_region])))
        assert "on a local transport only" in replies[1].error.message


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",  # a frame length of 4 GiB
        struct.pack("<I", 1 << 20) + b"half of what was promised",
        struct.pack("<I", 3) + b"\xff\xff\xff",  # not a message
    ],
)
def test_invalid_frames_and_disconnects_affect_only_their_session(
    client: Client, raw: RawSession, garbage: bytes
) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        with connect(raw.local, raw.local.access_token) as invalid:
            assert invalid.recv(1) == b"\1"
            invalid.sendall(garbage)
            invalid.shutdown(socket.SHUT_WR)
            assert invalid.recv(1) == b""
        logits = torch.zeros(1, VOCAB)
        session.step({handle: []}).apply(logits)
        assert logits[0, 7] == -torch.inf


def test_bounds_are_checked_on_the_wire(raw: RawSession) -> None:
    with connect(raw.local, raw.local.access_token) as connection:
        assert connection.recv(1) == b"\1"
        request = Request(processors=[(HalveInPlace, {})]).to_proto()
        adding = processing_pb2.AddRequests(requests=[processing_pb2.SlottedRequest(request=request)])
        assert exchange(connection, processing_pb2.SessionRequest(seq=2, add=adding)).added.reads_logits == b"\1"
        zero = struct.pack("<i", 0)
        step = processing_pb2.Step(
            slots=zero, generations=zero, base_lengths=zero, history_crcs=zero, new_token_counts=zero
        )
        assert exchange(connection, processing_pb2.SessionRequest(seq=3, step=step)).edits.logits_rows == zero
        opening = processing_pb2.OpenRegion(size_bytes=VOCAB * 4)
        number = exchange(connection, processing_pb2.SessionRequest(seq=4, open_region=opening)).region_opened.region_id
        seq = 5
        for region_id, byte_offset in [(number, 4), (number, (1 << 64) - 4), (number + 1, 0), (0, 0)]:
            frame = processing_pb2.SessionRequest(seq=seq)
            tensor = frame.logits.logits
            tensor.datatype, tensor.shape[:] = "FP32", [1, VOCAB]
            tensor.region.region_id, tensor.region.byte_offset = region_id, byte_offset
            assert "region" in exchange(connection, frame).error.message
            seq += 1
        tensor.region.region_id, tensor.region.byte_offset, frame.seq = number, 0, seq
        assert exchange(connection, frame).WhichOneof("frame") == "logits"


def test_frames_use_one_transport_only(client: Client) -> None:
    with client.session(vocab_size=VOCAB, transport="local") as session:
        local = session._channel.transport
        assert isinstance(local, LocalTransport)
        frame = processing_pb2.SessionRequest(seq=2)
        frame.remove.SetInParent()
        local._stream.send(frame)
        reply = processing_pb2.SessionResponse.FromString(local._stream.receive())
        assert "local transport" in reply.error.message


def test_more_memory_than_allowed(start_server: Any) -> None:
    server = start_server("--max-region-bytes", str(VOCAB * 4 * 2))
    with Client(server.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        with pytest.raises(LimitExceeded, match="max_region_bytes"):
            session.logits_buffer(3)
        logits = session.logits_buffer(2)[:1]
        session.step({handle: []}).apply(logits)
        assert logits[0, 7] == -torch.inf


def test_a_server_without_local_transport(start_server: Any) -> None:
    server = start_server("--no-local-transport")
    with Client(server.target) as client:
        with client.session(vocab_size=VOCAB) as session:
            assert session.transport == "grpc"
        with pytest.raises(Exception, match="offers none"):
            client.session(vocab_size=VOCAB, transport="local")


def test_without_unix_sockets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")  # like on Windows
    with client.session(vocab_size=VOCAB) as session:
        assert session.transport == "grpc"


def test_nothing_is_left_behind(client: Client, server: Any) -> None:
    def held() -> tuple[int, int]:
        process = Path(f"/proc/{server.process.pid}")
        return len(os.listdir(process / "fd")), (process / "maps").read_text().count("logitport-region")

    def use() -> None:
        with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as session:
            handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
            session.step({handle: []}).apply(session.logits_buffer(1))

    use()
    before = held()
    for _ in range(20):
        use()
    wait_until(  # the server detects the end of a stream with a delay
        lambda: all(now <= then for now, then in zip(held(), before, strict=True)),
        lambda: f"descriptors and regions: {held()}, and {before} before",
    )


def test_an_unclosed_session_ends_when_it_is_collected(server: Any) -> None:
    threads, before = threading.active_count(), descriptors()
    with Client(server.target) as client:
        session = client.session(vocab_size=VOCAB, transport="local")
        session.step({session.add(Request([1])): []}).apply(np.zeros((1, VOCAB), np.float32))
        ended = weakref.ref(session._channel.transport)
        del session
        gc.collect()
        assert ended() is None
    wait_until(
        lambda: threading.active_count() <= threads and descriptors() <= before,
        threading.enumerate,
    )


def test_wrong_logits_are_refused_before_anything_is_sent(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as session:
        handle = session.add(Request(processors=[(HalveInPlace, {})]))
        pending = session.step({handle: []})
        with pytest.raises(InvalidArgument):
            pending.apply(torch.zeros(1, VOCAB + 1))
        with pytest.raises(InvalidArgument):
            pending.apply(torch.zeros(1, VOCAB, dtype=torch.float16))
        logits = torch.ones(1, VOCAB)
        pending.apply(logits)
        assert (logits == 0.5).all()
        with pytest.raises(InvalidArgument, match="applied already"):
            pending.apply(logits)
