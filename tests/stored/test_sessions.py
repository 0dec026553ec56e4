"""Recorded sessions of earlier versions: the server's replies and the SDK's results are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message

from logitport import Client
from logitport_proto import processing_pb2
from tests.stored import local_recorder
from tests.stored.decoding import OPENING, converse
from tests.stored.reading import each, skip_other_python
from tests.stored.recorder import exchange, replaying

if TYPE_CHECKING:
    from tests.conftest import RunningServer

_SDK_SESSIONS = [case for case in each("sessions/*.json") if "seen" in case.values[0]]
_LOCAL_SDK_SESSIONS = [case for case in each("sessions-local/*.json") if "seen" in case.values[0]]


@pytest.mark.parametrize("case", each("sessions/*.json"))
def test_recorded_frames_get_equal_replies(server: RunningServer, case: dict[str, Any]) -> None:
    skip_other_python(case)
    requests, replies = zip(*case["frames"], strict=True)
    current = exchange(server.target, map(bytes.fromhex, requests))
    for request, reply, recorded in zip(requests, current, replies, strict=True):
        frame = processing_pb2.SessionRequest.FromString(bytes.fromhex(request))
        assert comparable(reply) == comparable(bytes.fromhex(recorded)), frame


@pytest.mark.parametrize("case", _SDK_SESSIONS)
def test_the_sdk_decodes_recorded_replies_the_same(case: dict[str, Any]) -> None:
    """No server is needed and no shipped code runs: the recording replies to the SDK."""
    replies = [bytes.fromhex(reply) for _, reply in case["frames"]]
    with replaying(replies) as target, Client(target) as client, client.session(**OPENING) as session:
        assert converse(session, case["chains"]) == case["seen"]


@pytest.mark.parametrize("case", _SDK_SESSIONS)
def test_the_sdk_gets_the_same_results_from_the_current_server(client: Client, case: dict[str, Any]) -> None:
    skip_other_python(case)
    with client.session(**OPENING) as session:
        assert converse(session, case["chains"]) == case["seen"]


@pytest.mark.parametrize("case", each("sessions-local/*.json"))
def test_recorded_frames_of_the_local_transport_get_equal_replies(server: RunningServer, case: dict[str, Any]) -> None:
    skip_other_python(case)
    recorded = _exchanges(case)
    current = local_recorder.exchange(server.target, ((one.request, one.before) for one in recorded))
    for one, before in zip(current, recorded, strict=True):
        frame = processing_pb2.SessionRequest.FromString(one.request)
        assert comparable(one.reply) == comparable(before.reply), frame
        assert one.after == before.after, frame


@pytest.mark.parametrize("case", _LOCAL_SDK_SESSIONS)
def test_the_sdk_decodes_recorded_replies_of_the_local_transport_the_same(case: dict[str, Any]) -> None:
    with (
        local_recorder.replaying(_exchanges(case)) as target,
        Client(target) as client,
        client.session(**OPENING | {"transport": "local"}) as session,
    ):
        assert converse(session, case["chains"]) == case["seen"]


@pytest.mark.parametrize("case", _LOCAL_SDK_SESSIONS)
def test_the_sdk_gets_the_same_results_by_the_local_transport(client: Client, case: dict[str, Any]) -> None:
    skip_other_python(case)
    with client.session(**OPENING | {"transport": "local"}) as session:
        assert converse(session, case["chains"]) == case["seen"]


def _exchanges(case: dict[str, Any]) -> list[local_recorder.Exchange]:
    return [local_recorder.Exchange(*map(bytes.fromhex, frame)) for frame in case["frames"]]


def comparable(reply: bytes) -> processing_pb2.SessionResponse:
    """Return the reply without fields that differ between runs, later fields (events, only_denies), and error texts.

    The counts of rows are sorted: the compiled core and Python write them in another order.
    """
    message = processing_pb2.SessionResponse.FromString(reply)
    if message.WhichOneof("frame") == "opened":
        message.opened.CopyFrom(processing_pb2.SessionOpened(max_requests=message.opened.max_requests))
    else:
        _clear_text(message)
        for chain in message.added.chains if message.HasField("added") else ():
            chain.ClearField("only_denies")
        for part in (message.edits, message.logits):
            if part.events:
                part.ClearField("events")
            if part.applied:
                part.applied.sort(key=lambda applied: applied.processor)
    return message


def _clear_text(message: Message) -> None:
    if message.DESCRIPTOR.name == "Error":
        message.ClearField("message")
        message.ClearField("remote_traceback")
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if isinstance(value, Message) else value:
                _clear_text(inner)
