"""Messages of any size and content."""

from __future__ import annotations

import pytest

from logitport import InvalidArgument, LimitExceeded
from logitport.system.frame_limits import SMALL_MESSAGE_BYTES
from logitport_proto import common_pb2, processing_pb2, registry_pb2
from logitport_server.access import message_parsing
from logitport_server.access.message_parsing import Unparsed
from logitport_session.resources import parsing
from logitport_session.resources.parsing import parse

FRAME = processing_pb2.SessionRequest


def frame(processors: int, padding: int = 0) -> bytes:
    """A frame that admits a request with so many processors, and with so many bytes."""
    call = common_pb2.ProcessorCall(params=b"x")
    request = common_pb2.Request(processors=[call] * processors, sampling_params=bytes(padding))
    addition = processing_pb2.SlottedRequest(slot=1 << 20, request=request)
    return FRAME(seq=300, add=processing_pb2.AddRequests(requests=[addition])).SerializeToString()


@pytest.mark.parametrize("method", ["LogitProcessing/Session", "LogitProcessing/Apply", "ProcessorRegistry/Register"])
@pytest.mark.parametrize("data", [b"\x0a\x7f", bytes(SMALL_MESSAGE_BYTES + 1)])
def test_messages_of_any_size_are_parsed_by_the_process_of_the_caller(method: str, data: bytes) -> None:
    received: list[int] = []
    unparsed = message_parsing.deserializer(f"/logitport.v1.{method}", FRAME.FromString, received.append)(data)
    assert isinstance(unparsed, Unparsed)
    assert unparsed.data == data
    assert received == [len(data)]


@pytest.mark.parametrize(
    ("method", "limit"),
    [("/logitport.v1.ProcessorRegistry/Get", SMALL_MESSAGE_BYTES), ("/grpc.health.v1.Health/Check", 4096)],
)
def test_messages_of_other_methods_are_small(method: str, limit: int) -> None:
    read = message_parsing.deserializer(method, bytes)
    assert read(bytes(limit)) == bytes(limit)
    with pytest.raises(LimitExceeded, match=f"has {limit + 1} bytes; the limit is {limit}"):
        read(bytes(limit + 1))


def test_small_bytes_that_are_no_message() -> None:
    with pytest.raises(InvalidArgument, match=r"2 bytes are not a valid message of .*/Get"):
        message_parsing.deserializer("/logitport.v1.ProcessorRegistry/Get", registry_pb2.GetRequest.FromString)(
            b"\x0a\x7f"
        )


def test_a_reply_that_is_serialized_already() -> None:
    write = message_parsing.serializer(FRAME.SerializeToString)
    assert write(FRAME(seq=7)) == write(FRAME(seq=7).SerializeToString()) == FRAME(seq=7).SerializeToString()


@pytest.fixture
def max_fields(monkeypatch: pytest.MonkeyPatch) -> int:
    """The limit, made small."""
    monkeypatch.setattr(parsing, "MAX_FIELDS", 1000)
    return 1000


def test_a_large_message_with_few_fields(max_fields: int) -> None:
    data = frame(max_fields // 2 - 10, 100 * max_fields)
    assert parse(FRAME, data) == FRAME.FromString(data)


def test_the_number_of_fields_is_limited_before_the_message_is_parsed(max_fields: int) -> None:
    with pytest.raises(LimitExceeded, match=f"more than {max_fields} fields"):
        parse(FRAME, frame(max_fields // 2 + 1))
    with pytest.raises(LimitExceeded):
        parse(FRAME, b"\x7a\0" * 2 * max_fields)  # fields of no known number


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize("content", [b"\xff" * 16, b"\x0b", b"\x0a\xff\xff\xff\xff\x0f", b"\x08" + b"\x80" * 11])
def test_bytes_that_are_no_message(max_fields: int, content: bytes, size: int) -> None:
    data = content + b"\x08\x01" * size
    for whole in (data, b"\x12\x01" + data):
        with pytest.raises((InvalidArgument, LimitExceeded)):
            parse(FRAME, whole)
    with pytest.raises(InvalidArgument, match="bytes are not a valid SessionRequest"):
        parse(FRAME, content)
