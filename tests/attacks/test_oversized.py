"""Oversized inputs of every kind: each is refused by its limit, and only its call, frame or request fails."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from tests.attacks.conftest import columns, int32
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 64
MIB = 1 << 20
LARGE: list[Any] = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
CALL = {"processor": {"builtin": "no_repeat_ngram"}, "params": b'{"ngram_size":2}'}


@pytest.fixture
def channel(attacked: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(attacked.target, options=LARGE) as opened:
        yield opened


def status_of(call: Any, message: Any, **options: Any) -> str:
    with pytest.raises(grpc.RpcError) as raised:
        call(message, timeout=SECONDS, **options)
    return str(raised.value.code().name)


def test_a_message(channel: grpc.Channel, peak: Any) -> None:
    for method in ("ProcessorRegistry/Register", "ProcessorRegistry/Get", "LogitProcessing/Apply"):
        assert status_of(channel.unary_unary(f"/logitport.v1.{method}"), bytes(257 * MIB)) == "RESOURCE_EXHAUSTED"
    stream = channel.stream_stream("/logitport.v1.LogitProcessing/Session")
    assert status_of(lambda message, **options: list(stream(iter([message]), **options)), bytes(257 * MIB)) == (
        "RESOURCE_EXHAUSTED"
    )
    assert peak.growth_bytes < 64 * MIB


@pytest.mark.parametrize("method", ["ProcessorRegistry/Get", "ProcessorRegistry/Delete", "ProcessorRegistry/List"])
def test_a_message_of_a_call_that_takes_small_ones(channel: grpc.Channel, method: str) -> None:
    message = registry_pb2.GetRequest(processor="x" * MIB).SerializeToString()
    assert status_of(channel.unary_unary(f"/logitport.v1.{method}"), message) == "RESOURCE_EXHAUSTED"


def test_a_message_without_a_token(channel: grpc.Channel) -> None:
    message = health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()
    assert status_of(channel.unary_unary("/grpc.health.v1.Health/Check"), message) == "RESOURCE_EXHAUSTED"


EMPTY_REQUESTS = b"\x0a\x00" * (2 * MIB)  # each takes two bytes in the message, and about a hundred in memory


def test_empty_submessages_in_masses(channel: grpc.Channel, raw_engine: Any, code: Any, peak: Any) -> None:
    apply = channel.unary_unary("/logitport.v1.LogitProcessing/Apply")
    assert status_of(apply, EMPTY_REQUESTS) == "RESOURCE_EXHAUSTED"
    add = b"\x1a" + varint(len(EMPTY_REQUESTS)) + EMPTY_REQUESTS
    stream = channel.stream_stream("/logitport.v1.LogitProcessing/Session")
    assert status_of(lambda data, **options: list(stream(iter([data]), **options)), add) == "RESOURCE_EXHAUSTED"
    local = raw_engine().attach()
    local.connection.sendall(struct.pack("<I", len(add)) + add)
    assert code(local.read().error) == "LIMIT_EXCEEDED", "only the frame is refused"
    assert peak.growth_bytes < 64 * MIB


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def test_metadata(channel: grpc.Channel) -> None:
    stub = registry_pb2_grpc.ProcessorRegistryStub(channel)
    for metadata in ([("x", "y" * MIB)], [(f"x-{number}", "y") for number in range(20_000)]):
        status = status_of(stub.List, registry_pb2.ListRequest(), metadata=metadata)
        assert status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


PART = b"part of what was announced"


@pytest.mark.parametrize(
    "data",
    [
        *(struct.pack("<I", length) for length in (2**32 - 1, 2**31, 257 * MIB)),
        struct.pack("<I", 3) + b"\xff\xff\xff",  # not a message
        struct.pack("<I", MIB) + PART,
    ],
)
def test_an_invalid_frame_ends_its_local_transport(raw_engine: Any, peak: Any, data: bytes) -> None:
    engine = raw_engine()
    local = engine.attach()
    local.connection.sendall(data)
    if data.endswith(PART):
        local.connection.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        assert local.connection.recv(1) == b"", "the local transport is still open"
    assert peak.growth_bytes < 64 * MIB


def test_an_announced_frame_that_never_arrives_takes_no_memory(raw_engine: Any, peak: Any) -> None:
    engines = [raw_engine() for _ in range(8)]
    for engine in engines:
        engine.attach().connection.sendall(struct.pack("<I", 255 * MIB) + bytes(1000))
    time.sleep(0.5)
    assert peak.growth_bytes < 64 * MIB


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a request's name": ({"request_id": "x" * MIB}, "INVALID_ARGUMENT"),
    "a tenant's name": ({"tenant": "x" * MIB}, "INVALID_ARGUMENT"),
    "a chain": ({"processors": [CALL] * 100_000}, "LIMIT_EXCEEDED"),
    "a prompt": ({"prompt_token_ids": [1] * (2 * MIB)}, "LIMIT_EXCEEDED"),
    "a prompt in a column": ({"prompt_ids": bytes(8 * MIB)}, "LIMIT_EXCEEDED"),
    "an output in a column": ({"output_ids": bytes(8 * MIB)}, "LIMIT_EXCEEDED"),
    "an output": ({"output_token_ids": [1] * (2 * MIB)}, "LIMIT_EXCEEDED"),
    "parameters": ({"processors": [{**CALL, "params": b'{"ngram_size":2' + b" " * MIB + b"}"}]}, "LIMIT_EXCEEDED"),
    "sampling parameters": ({"sampling_params": b"{" + b" " * (8 * MIB) + b"}"}, "LIMIT_EXCEEDED"),
    "a built-in's name": ({"processors": [{"processor": {"builtin": "x" * MIB}}]}, "NOT_FOUND"),
    "a name": ({"processors": [{"processor": {"name": "x/" * MIB}}]}, "NOT_FOUND"),
    "a digest": ({"processors": [{"processor": {"digest": "0" * MIB}}]}, "NOT_FOUND"),
    "a payload": ({"processors": [{"processor": {"payload": "0" * (20 * MIB)}}]}, "LIMIT_EXCEEDED"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request(channel: grpc.Channel, raw_engine: Any, code: Any, name: str, peak: Any) -> None:
    requests, expected = REQUESTS[name]
    request = common_pb2.Request(**requests)
    message = processing_pb2.ApplyRequest(
        logits={"datatype": "FP32", "shape": [2, VOCAB], "raw": bytes(8 * VOCAB)}, requests=[request, {}]
    )
    response = processing_pb2_grpc.LogitProcessingStub(channel).Apply(message, timeout=SECONDS)
    assert [(failure.slot, code(failure.error)) for failure in response.failures] == [(0, expected)]
    assert response.ByteSize() < 100_000, "the error repeats the oversized input"
    assert peak.growth_bytes < 200 * MIB


@pytest.mark.parametrize("column", ["slots", "new_token_ids", "row_requests", "draft_token_ids"])
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_columns(raw_engine: Any, code: Any, peak: Any, column: str, transport: str) -> None:
    engine = raw_engine()
    if transport == "local":
        engine.attach()
    assert code(engine.send(step={column: bytes(8 * MIB)}).error) == "LIMIT_EXCEEDED"
    assert peak.growth_bytes < 64 * MIB


def test_a_step_of_maximum_size_does_not_block_other_sessions(raw_engine: Any, code: Any) -> None:
    """Only its own session is slow. Another session gets replies meanwhile."""
    engine, other = raw_engine(max_draft_tokens=256), raw_engine()
    engine.send(add={"requests": [{}]})
    rows = 32_000
    drafts = {"draft_counts": int32(256), "draft_token_ids": bytes(4 * 256)}
    step = columns((), **drafts, row_requests=bytes(4 * rows), row_draft_offsets=int32(256) * rows)

    def served_meanwhile() -> int:
        with ThreadPoolExecutor(1) as thread:
            processed = thread.submit(engine.send, step=step)
            served = 0
            while not processed.done():
                other.send(step={})
                served += 1
        assert processed.result().WhichOneof("frame") == "edits"
        return served

    wait_until(lambda: served_meanwhile() > 4)


@pytest.mark.parametrize("vocab_size", [2**31 - 1, 2**30])
def test_an_unrealistic_vocabulary(raw_engine: Any, peak: Any, vocab_size: int) -> None:
    engine = raw_engine(vocab_size=vocab_size)
    chain = [{**CALL, "params": b'{"ngram_size":1}'}, {"processor": {"builtin": "disallowed_tokens"}}]
    chain[1]["params"] = b'{"token_ids":[0,1,2]}'
    n = 64
    requests = [{"slot": slot, "request": {"processors": chain, "prompt_token_ids": [7]}} for slot in range(n)]
    assert not engine.send(add={"requests": requests}).added.failures
    assert not engine.send(step=columns(*[(7,)] * n)).edits.failures
    assert peak.growth_bytes < 64 * MIB


def test_more_requests_than_the_session_limit(raw_engine: Any, code: Any) -> None:
    engine = raw_engine(max_requests=2**31 - 1)
    requests = [{"slot": slot, "request": {"processors": [CALL]}} for slot in range(2000)]
    reply = engine.send(add={"requests": requests}).added
    assert len(reply.failures) == 2000 - engine.opened.max_requests
    assert {code(failure.error) for failure in reply.failures} == {"INVALID_ARGUMENT"}


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", bytes(MIB), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * MIB]
)
def test_bytes_that_are_not_grpc(attacked: Any, data: bytes) -> None:
    host, _, port = attacked.target.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        try:
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
        except (ConnectionError, TimeoutError):
            pass
