"""A client without the .proto files gets the services and their health from the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from logitport_proto import common_pb2, processing_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = {"logitport.v1.LogitProcessing", "logitport.v1.ProcessorRegistry", "logitport.v1.Admin"}


@pytest.fixture
def channel(server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target) as connected:
        yield connected


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert listed == OURS | {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.mark.parametrize("module", [common_pb2, processing_pb2, registry_pb2], ids=lambda module: module.__name__)
def test_reflection_describes_the_contract(channel: grpc.Channel, module: Any) -> None:
    described = ProtoReflectionDescriptorDatabase(channel).FindFileByName(module.DESCRIPTOR.name)

    expected = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(expected)
    assert described == expected


def test_a_call_can_be_made_with_reflection_only(channel: grpc.Channel) -> None:
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("logitport.v1.ProcessorRegistry").methods_by_name["Get"]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    assert request is not registry_pb2.GetRequest
    get = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )

    described = MessageToDict(get(request(processor="disallowed_tokens")))

    described_fields = {"names": ["disallowed_tokens"], "builtin": True, "shared": True}
    assert described == {"processor": {**described_fields, "className": "DisallowedTokens", "dialect": "edits"}}


@pytest.mark.parametrize("service", ["", *sorted(OURS)])
def test_health_of_each_service(channel: grpc.Channel, service: str) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_health_of_an_unknown_service(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="logitport.v1.NoSuch"))

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
