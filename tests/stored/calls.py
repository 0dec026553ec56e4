"""Calls other than sessions: their messages as bytes, and the errors of those that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import METADATA_KEY
from logitport_proto import admin_pb2, common_pb2, processing_pb2, registry_pb2
from tests.stored.decoding import PROMPT, VOCAB, sample_logits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

_ADMIN = "logitport.v1.Admin"
_REGISTRY = "logitport.v1.ProcessorRegistry"
_PROCESSING = "logitport.v1.LogitProcessing"
_TIMEOUT_SECONDS = 200.0


def requests(payload: str, program: str) -> Iterator[tuple[str, Message]]:
    """Yield (method, message) of each call, in this order, for a server without registered processors.

    Args:
        payload: `Tilt` of processors.py.
        program: any program that needs no parameters.
    """
    yield f"{_PROCESSING}/GetLoad", processing_pb2.GetLoadRequest()
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload=payload, name="team/tilt:v1", shared=True)
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload=payload, name="team/tilt:v1")
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload=program, name="team/tilt:v1")
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload=program, name="team/program")
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload="{}")
    yield f"{_REGISTRY}/Register", registry_pb2.RegisterRequest(payload=program, name="No Name")
    yield f"{_REGISTRY}/Get", registry_pb2.GetRequest(processor="team/tilt:v1")
    yield f"{_REGISTRY}/Get", registry_pb2.GetRequest(processor="disallowed_tokens")
    yield f"{_REGISTRY}/Get", registry_pb2.GetRequest(processor="team/unbound")
    yield f"{_REGISTRY}/List", registry_pb2.ListRequest()
    by_name = _call({"name": "team/tilt:v1"}, b'{"by": 0.5}')
    yield f"{_PROCESSING}/Apply", _apply([by_name], [_call({"builtin": "disallowed_tokens"}, b'{"token_ids": [1, 2]}')])
    yield f"{_PROCESSING}/Apply", _apply([by_name, _call({"name": "team/program"})], [])
    yield f"{_PROCESSING}/Apply", _apply([_call({"builtin": "disallowed_tokens"}, b'{"token_ids": [99]}')], [by_name])
    yield f"{_PROCESSING}/Apply", _apply([by_name], [], width=VOCAB + 1)
    yield f"{_ADMIN}/Unquarantine", admin_pb2.UnquarantineRequest(processor="team/tilt:v1")
    yield f"{_REGISTRY}/Delete", registry_pb2.DeleteRequest(processor="team/tilt:v1")
    yield f"{_REGISTRY}/Delete", registry_pb2.DeleteRequest(processor="team/tilt:v1")
    yield f"{_REGISTRY}/Delete", registry_pb2.DeleteRequest(processor="disallowed_tokens")
    yield f"{_ADMIN}/Drain", admin_pb2.DrainRequest()
    yield f"{_PROCESSING}/GetLoad", processing_pb2.GetLoadRequest()


def _call(processor: dict[str, str], params: bytes = b"") -> common_pb2.ProcessorCall:
    return common_pb2.ProcessorCall(processor=common_pb2.Processor(**processor), params=params)


def _apply(
    first: list[common_pb2.ProcessorCall], second: list[common_pb2.ProcessorCall], width: int = VOCAB
) -> processing_pb2.ApplyRequest:
    logits = common_pb2.Tensor(datatype="FP32", shape=[2, width], raw=sample_logits(2).tobytes())
    requests = [
        common_pb2.Request(request_id=name, prompt_token_ids=PROMPT, output_token_ids=output, processors=chain)
        for name, output, chain in (("a", [], first), ("b", [7], second))
    ]
    return processing_pb2.ApplyRequest(logits=logits, requests=requests)


def ask(channel: grpc.Channel, method: str, request: bytes) -> dict[str, Any]:
    """Make a call. Returns its reply, or its status with the error in the trailing metadata, as hexadecimal digits."""
    try:
        return {"reply": channel.unary_unary(f"/{method}")(request, timeout=_TIMEOUT_SECONDS).hex()}
    except grpc.RpcError as error:
        failed: Any = error
        details = dict(failed.trailing_metadata() or ()).get(METADATA_KEY, b"")
        return {"status": failed.code().name, "error": details.hex()}
