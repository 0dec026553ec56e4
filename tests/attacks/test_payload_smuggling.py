"""A payload, in every field of every message of every call, to a server that accepts none: it is never unpickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from logitport_proto import processing_pb2, registry_pb2
from tests.smuggling import FRAMES, LOGITS, REQUEST, frame_places, place_name, places, plant, set_traps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import MethodDescriptor

METHODS = [
    method
    for module in (processing_pb2, registry_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
# Other fields of the message, without which the planted field is not read.
AROUND: dict[str, dict[str, Any]] = {
    "ApplyRequest": {"logits": LOGITS, "requests": [REQUEST]},
    "RegisterRequest": {"payload": '{"callable": ""}', "name": "team/x"},
}


@pytest.fixture(scope="session")
def attacked(server_without_flag: Any) -> Any:
    return server_without_flag


@pytest.fixture(scope="session")
def chain() -> list[tuple[Any, dict[str, Any]]]:
    return [("no_repeat_ngram", {"ngram_size": 1})]


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[list[bytes]]:
    with set_traps(tmp_path) as planted:
        yield planted


def call(channel: grpc.Channel, method: MethodDescriptor, data: bytes, **options: Any) -> grpc.StatusCode:
    """Send any bytes as a message, and return the status."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            list(channel.stream_stream(path)(iter([data]), timeout=200, **options))
        elif method.server_streaming:
            next(iter(channel.unary_stream(path)(data, timeout=200, **options)))
        else:
            channel.unary_unary(path)(data, timeout=200, **options)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def name_of(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


def test_payloads_in_any_field_of_any_call_are_not_unpickled(attacked: Any, traps: list[bytes]) -> None:
    with grpc.insecure_channel(attacked.target) as channel:
        for method in METHODS:
            kind = method.input_type
            for place in places(kind):
                for trap in traps:
                    message = kind._concrete_class(**AROUND.get(kind.name, {}))
                    if plant(message, place, trap):
                        status = call(channel, method, message.SerializeToString())
                        description = f"{name_of(method)} {place_name(place)}: {status}"
                        assert status not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), description


def test_payloads_in_unknown_fields_and_in_metadata_are_not_unpickled(attacked: Any, traps: list[bytes]) -> None:
    with grpc.insecure_channel(attacked.target) as channel:
        for method in METHODS:
            known = method.input_type._concrete_class(**AROUND.get(method.input_type.name, {})).SerializeToString()
            for trap in traps:
                field_1023 = b"\xfa\x3f" + bytes([len(trap) & 0x7F | 0x80, len(trap) >> 7]) + trap
                call(channel, method, known + field_1023)
                metadata = [("x-payload-bin", trap), ("logitport-payload-bin", trap), ("authorization-bin", trap)]
                call(channel, method, known, metadata=metadata)


# tests/server/transports/test_payload_smuggling.py has every field of every frame.
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_payloads_of_a_frame_are_refused(raw_engine: Any, traps: list[bytes], code: Any, transport: str) -> None:
    (place,) = (place for place in frame_places() if place[-1].name == "payload")
    for trap in traps:
        frame = processing_pb2.SessionRequest(add=FRAMES["add"])
        if not plant(frame, place, trap):
            continue
        engine = raw_engine()
        if transport == "local":
            engine.attach()
        reply = engine.send(add=frame.add)
        assert [code(failure.error) for failure in reply.added.failures] == ["PAYLOAD_NOT_ALLOWED"]
        engine.close()


def test_all_services_are_tried() -> None:
    assert {name_of(method) for method in METHODS} > {"ProcessorRegistry.Register", "LogitProcessing.Session"}
