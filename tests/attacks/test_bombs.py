"""Inputs that are small on the wire but large, deep or slow to decode: compressed messages, JSON, pickles."""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 64
MIB = 1 << 20
# Limit for the memory that the server takes to handle one bomb, including the message itself.
_MAX_BYTES = 90 * MIB
LARGE: list[Any] = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@pytest.fixture(autouse=True)
def bounded(peak: Any) -> Iterator[None]:
    """Check that the attack took neither long nor much memory."""
    started = time.monotonic()
    yield
    assert peak.growth_bytes < _MAX_BYTES
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_refused_before_decompression(attacked: Any, compression: grpc.Compression) -> None:
    with grpc.insecure_channel(attacked.target, options=LARGE, compression=compression) as channel:
        for method in ("ProcessorRegistry/Register", "LogitProcessing/Apply"):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(f"/logitport.v1.{method}")(bytes(100 * MIB), timeout=SECONDS)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_compressed_frame_is_refused_before_decompression(attacked: Any) -> None:
    with grpc.insecure_channel(attacked.target, options=LARGE, compression=grpc.Compression.Gzip) as channel:
        stream = channel.stream_stream("/logitport.v1.LogitProcessing/Session")
        with pytest.raises(grpc.RpcError) as raised:
            list(stream(iter([bytes(100 * MIB)]), timeout=SECONDS))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


NESTED = 100_000
JSON_BOMBS = {
    "nested objects": b'{"a":' * NESTED + b"1" + b"}" * NESTED,
    "nested lists": b'{"a":' + b"[" * NESTED + b"]" * NESTED + b"}",
    "lists that never close": b'{"a":' + b"[" * NESTED,
    "lists in lists, wide": b'{"a":[' + b"[]," * (4 * MIB) + b"[]]}",
    "many keys": json.dumps(dict.fromkeys(map(str, range(100_000)))).encode(),
    "a long integer": b'{"token_ids":[' + b"9" * MIB + b"]}",
    "a long integer with a sign": b'{"token_ids":[-' + b"9" * 500_000 + b"]}",
    "a long fraction": b'{"token_ids":[0.' + b"3" * 500_000 + b"]}",
    "a large exponent": b'{"token_ids":[1e999999999]}',
    "not a number": b'{"token_ids":[NaN]}',
    "infinity": b'{"token_ids":[-Infinity]}',
    "a token id of 64 bits": b'{"token_ids":[18446744073709551615]}',
    "a token id of more than 64 bits": b'{"token_ids":[18446744073709551616]}',
    "a token id that is one in 32 bits": b'{"token_ids":[4294967299]}',
    "a key that occurs 150,000 times": b"{" + b'"a":1,' * 150_000 + b'"token_ids":["x"]}',
    "half a character": b'{"token_ids":["\xff"]}',
    "half a surrogate": b'{"token_ids":["\\ud800"]}',
    "nothing but space": b" " * MIB,
}


@pytest.mark.parametrize("name", JSON_BOMBS)
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_json_of_parameters(raw_engine: Any, code: Any, name: str, transport: str) -> None:
    engine = raw_engine()
    if transport == "local":
        engine.attach()
    call = {"processor": {"builtin": "disallowed_tokens"}, "params": JSON_BOMBS[name]}
    (failure,) = engine.send(add={"requests": [{"request": {"processors": [call]}}]}).added.failures
    assert code(failure.error) in ("INVALID_ARGUMENT", "INVALID_ARGUMENT", "LIMIT_EXCEEDED")


@pytest.mark.parametrize(
    "name", ["nested objects", "lists that never close", "lists in lists, wide", "half a character"]
)
def test_json_of_sampling_parameters(raw_engine: Any, code: Any, name: str) -> None:
    request = {"sampling_params": JSON_BOMBS[name]}
    (failure,) = raw_engine().send(add={"requests": [{"request": request}]}).added.failures
    assert code(failure.error) in ("INVALID_ARGUMENT", "LIMIT_EXCEEDED")


@pytest.mark.parametrize("builtin", ["thinking_budget", "no_repeat_ngram", "disallowed_tokens"])
@pytest.mark.parametrize(
    "value",
    [b"1e308", b"-1", b"0", b"9223372036854775807", b"18446744073709551615", b"9" * 4000, b"true", b"[]", b"{}", b'""'],
)
def test_numbers_of_built_ins(raw_engine: Any, code: Any, builtin: str, value: bytes) -> None:
    keys = ("ngram_size", "token_ids", "thinking_budget", "start_token_ids", "end_token_ids", "new_line_token_id")
    engine = raw_engine()
    for key in keys:
        call = {"processor": {"builtin": builtin}, "params": b'{"%s":%s}' % (key.encode(), value)}
        reply = engine.send(add={"requests": [{"request": {"processors": [call], "prompt_token_ids": [1, 2, 1]}}]})
        for failure in reply.added.failures:
            assert code(failure.error) in ("INVALID_ARGUMENT", "INVALID_ARGUMENT", "PROCESSOR_FAILED")
            assert "Error" not in failure.error.message, failure.error.message


PICKLES = {
    "a memo index beyond memory": b"\x80\x04Nr\xff\xff\xff\xff.",
    "bytes of 2**62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "text of 2**62": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
    "a buffer of 2**62": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
    "an integer of 2**31 bytes": b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1) + b".",
    "an integer of negative length": b"\x80\x04\x8b" + struct.pack("<i", -1) + b".",
    "an integer of a million digits": b"I" + b"9" * MIB + b"\n.",
    "a long of a million digits": b"L" + b"9" * MIB + b"L\n.",
    "only marks": b"\x80\x04" + b"(" * 200_000 + b".",
    "an empty stack": b"\x80\x040.",
    "no end": b"\x80\x04" + b"N" * 200_000,
}


def register(target: str, data: bytes) -> str:
    with grpc.insecure_channel(target, options=LARGE) as channel:
        message = registry_pb2.RegisterRequest(payload=json.dumps({"callable": data.hex()}))
        try:
            registry_pb2_grpc.ProcessorRegistryStub(channel).Register(message, timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_announce_more_than_they_contain(attacked: Any, name: str) -> None:
    assert register(attacked.target, PICKLES[name]) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04)" + b"\x94h\x00\x86" * 50_000 + b".",  # each pair is twice the one before
        b"\x80\x04)" + b"\x85" * 100_000 + b".",  # tuples in tuples
        b"\x80\x04]" + b"\x94(h\x00h\x00e" * 50_000 + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",  # a missing frame
        b"\x80\x04\x8c\x01aQ.",  # a persistent id
        b"\x80\x04\x84\xff\xff\xff\x7f.",  # an extension
        b"\x80\xffN.",  # an invalid protocol
    ],
)
def test_pickles_that_only_the_unpickler_detects(attacked: Any, data: bytes) -> None:
    """Registration does not unpickle and may accept them. A request that uses one gets its error."""
    register(attacked.target, data)
    call = common_pb2.ProcessorCall(processor={"payload": json.dumps({"callable": data.hex()})})
    message = processing_pb2.ApplyRequest(
        logits={"datatype": "FP32", "shape": [1, VOCAB], "raw": bytes(4 * VOCAB)}, requests=[{"processors": [call]}]
    )
    with grpc.insecure_channel(attacked.target) as channel:
        response = processing_pb2_grpc.LogitProcessingStub(channel).Apply(message, timeout=SECONDS)
    assert [failure.slot for failure in response.failures] == [0]


@pytest.mark.parametrize("text", ["[" * NESTED, '{"callable":' * NESTED, '{"callable":"' + "0" * (15 * MIB)])
def test_payloads_that_are_deep_or_truncated(attacked: Any, text: str) -> None:
    with grpc.insecure_channel(attacked.target, options=LARGE) as channel, pytest.raises(grpc.RpcError) as raised:
        registry_pb2_grpc.ProcessorRegistryStub(channel).Register(
            registry_pb2.RegisterRequest(payload=text), timeout=SECONDS
        )
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
