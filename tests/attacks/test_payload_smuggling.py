"""A payload, in every field of every message of every call, to a server that accepts none: nobody unpickles it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from logitport_proto import processing_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, MethodDescriptor
    from google.protobuf.message import Message

VOCAB = 64
TEXT, OCTETS = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES
METHODS = [
    method
    for module in (processing_pb2, registry_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
ZERO = bytes(4)
REQUEST: dict[str, Any] = {
    "request_id": "r",
    "processors": [{"processor": {"builtin": "disallowed_tokens"}, "params": b'{"token_ids": [3]}'}],
    "sampling_params": b"{}",
    "tenant": "t",
}
LOGITS = {"datatype": "FP32", "shape": [1, VOCAB], "raw": bytes(4 * VOCAB)}
# What surrounds the planted field, so that it is reached.
AROUND: dict[str, dict[str, Any]] = {
    "ApplyRequest": {"logits": LOGITS, "requests": [REQUEST]},
    "RegisterRequest": {"payload": '{"callable": ""}', "name": "team/x"},
}
FRAMES: dict[str, dict[str, Any]] = {
    "open": {"vocab_size": VOCAB, "datatype": "FP32"},
    "add": {"requests": [{"request": REQUEST}]},
    "remove": {"slots": ZERO, "generations": ZERO},
    "step": {"slots": ZERO, "generations": ZERO, "base_lengths": ZERO, "history_crcs": ZERO, "row_requests": ZERO},
    "logits": {"logits": LOGITS},
    "open_region": {"size_bytes": 4096},
}


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="session")
def attacked(server_without_flag: Any) -> Any:
    return server_without_flag


@pytest.fixture(scope="session")
def chain() -> list[tuple[Any, dict[str, Any]]]:
    return [("no_repeat_ngram", {"ngram_size": 1})]


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[list[bytes]]:
    """A pickle that leaves a trace where it is loaded, in each form in which it could travel."""
    trace = tmp_path / "unpickled"
    ascii_pickle, binary_pickle = pickle.dumps(Touch(trace), 0), pickle.dumps(Touch(trace), 4)
    for data in (ascii_pickle, binary_pickle):
        pickle.loads(data)
        assert trace.exists(), "the trap does not work"
        trace.unlink()
    yield [
        json.dumps({"callable": binary_pickle.hex()}).encode(),
        binary_pickle.hex().encode(),
        ascii_pickle,
        binary_pickle,
    ]
    assert not trace.exists(), "the server has unpickled a payload that it must not even look at"


def places(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The way to every field of text or bytes."""
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from ((field, *rest) for rest in places(field.message_type))
        elif field.type in (TEXT, OCTETS):
            yield (field,)


def plant(message: Message, place: tuple[FieldDescriptor, ...], trap: bytes) -> bool:
    """Put the trap there; False if it is no text, and the field takes only that."""
    value: Any = trap
    if place[-1].type == TEXT:
        try:
            value = trap.decode("ascii")
        except UnicodeDecodeError:
            return False
    holder: Any = message
    for field in place[:-1]:
        inner = getattr(holder, field.name)
        holder = (inner[0] if inner else inner.add()) if field.is_repeated else inner
        if not field.is_repeated:
            holder.SetInParent()
    if place[-1].is_repeated:
        getattr(holder, place[-1].name).append(value)
    else:
        setattr(holder, place[-1].name, value)
    return True


def call(channel: grpc.Channel, method: MethodDescriptor, octets: bytes, **options: Any) -> grpc.StatusCode:
    """Send octets as a message, whatever they are."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            list(channel.stream_stream(path)(iter([octets]), timeout=200, **options))
        elif method.server_streaming:
            next(iter(channel.unary_stream(path)(octets, timeout=200, **options)))
        else:
            channel.unary_unary(path)(octets, timeout=200, **options)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def name_of(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_in_any_field_of_any_call(attacked: Any, traps: list[bytes], method: MethodDescriptor) -> None:
    kind = method.input_type
    with grpc.insecure_channel(attacked.target) as channel:
        for place in places(kind):
            for trap in traps:
                message = kind._concrete_class(**AROUND.get(kind.name, {}))
                if plant(message, place, trap):
                    status = call(channel, method, message.SerializeToString())
                    told = f"{name_of(method)} {'.'.join(field.name for field in place)}: {status}"
                    assert status not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), told


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_in_fields_that_do_not_exist_and_in_metadata(
    attacked: Any, traps: list[bytes], method: MethodDescriptor
) -> None:
    known = method.input_type._concrete_class(**AROUND.get(method.input_type.name, {})).SerializeToString()
    with grpc.insecure_channel(attacked.target) as channel:
        for trap in traps:
            field_1023 = b"\xfa\x3f" + bytes([len(trap) & 0x7F | 0x80, len(trap) >> 7]) + trap
            call(channel, method, known + field_1023)
            metadata = [("x-payload-bin", trap), ("logitport-payload-bin", trap), ("authorization-bin", trap)]
            call(channel, method, known, metadata=metadata)


def frame_places() -> list[tuple[FieldDescriptor, ...]]:
    return list(places(processing_pb2.SessionRequest.DESCRIPTOR))


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("place", frame_places(), ids=lambda place: ".".join(field.name for field in place))
def test_in_any_field_of_any_frame(
    raw_engine: Any, traps: list[bytes], code: Any, place: tuple[FieldDescriptor, ...], transport: str
) -> None:
    kind = place[0].name
    for trap in traps:
        frame = processing_pb2.SessionRequest(**{kind: FRAMES.get(kind, {})})
        if not plant(frame, place, trap):
            continue
        engine = raw_engine()
        if transport == "local":
            engine.attach()
        before = [name for name in ("add", "step") if kind in ("step", "logits", "remove") and name != kind]
        for name in before:
            assert engine.send(**{name: FRAMES[name]}).WhichOneof("frame") != "error"
        reply = engine.send(**{kind: getattr(frame, kind)})
        told = [reply.error] if reply.HasField("error") else [failure.error for failure in reply.added.failures]
        assert "INTERNAL" not in map(code, told)
        if place[-1].name == "payload":
            assert [code(error) for error in told] == ["PAYLOAD_NOT_ALLOWED"]
        engine.close()


def test_the_search_finds_what_is_there() -> None:
    searched = {".".join(field.name for field in place) for place in frame_places()}
    assert {"add.requests.request.processors.processor.payload", "logits.logits.raw", "step.slots"} <= searched
    assert {name_of(method) for method in METHODS} > {"ProcessorRegistry.Register", "LogitProcessing.Session"}
