"""Recorded calls of earlier versions get equal replies and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from logitport_proto import admin_pb2, common_pb2, processing_pb2, registry_pb2
from tests.stored.calls import ask
from tests.stored.reading import each, skip_other_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from tests.conftest import RunningServer


@pytest.mark.slow
@pytest.mark.parametrize("case", each("calls/*.json"))
def test_recorded_calls_get_equal_replies(start_server: Callable[..., RunningServer], case: dict[str, Any]) -> None:
    skip_other_python(case)
    with grpc.insecure_channel(start_server("--enable-custom-logit-processor").target) as channel:
        for call in case["calls"]:
            current = ask(channel, call["method"], bytes.fromhex(call["request"]))
            assert current.get("status") == call.get("status"), (call["method"], current)
            assert _comparable(call["method"], current) == _comparable(call["method"], call), call["method"]


def _comparable(method: str, answer: dict[str, Any]) -> Message:
    """Return the reply or error without texts, times, ids, and processors that this version has installed."""
    if "status" in answer:
        error = common_pb2.Error.FromString(bytes.fromhex(answer["error"]))
        for text in ("message", "remote_traceback"):
            error.ClearField(text)
        return error
    message: Any = _reply_type(method).FromString(bytes.fromhex(answer["reply"]))
    if method.endswith(("/List", "/Register")):
        message.ClearField("registry_id")
    if method.endswith("/List"):
        for info in [info for info in message.processors if info.builtin]:
            message.processors.remove(info)
    for info in [*getattr(message, "processors", ()), getattr(message, "processor", None)]:
        if isinstance(info, registry_pb2.ProcessorInfo):
            info.ClearField("registered_at")
    if isinstance(message, processing_pb2.ApplyResponse):
        for failure in message.failures:
            failure.error.ClearField("message")
            failure.error.ClearField("remote_traceback")
    return message


def _reply_type(method: str) -> type[Message]:
    service, name = method.split("/")
    for module in (admin_pb2, processing_pb2, registry_pb2):
        for one in module.DESCRIPTOR.services_by_name.values():
            if one.full_name == service:
                return GetMessageClass(one.methods_by_name[name].output_type)
    raise AssertionError(method)
