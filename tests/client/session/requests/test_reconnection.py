"""Reconnects of a session after its server ends in the middle of a step, against scripted servers."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import (
    AccessDenied,
    Edits,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    Request,
    RowEdits,
    ServerUnavailable,
    StateLost,
)
from logitport.errors import to_proto
from logitport_proto import processing_pb2
from tests.client.scripted import VOCAB, Script, Servers, failure, zeros

READ_ROW_0 = {"edits": processing_pb2.StepEdits(logits_rows=bytes(4))}


def test_the_next_server_gets_the_number_of_requests_that_follow() -> None:
    two = Servers(2)
    handles = [two.session.add(Request([1])) for _ in range(3)]
    two.session.remove(handles.pop())
    two.session.step({handles[0]: [2]}).apply(zeros())
    two.end(0)
    two.session.step({handles[0]: [2]}).apply(zeros())
    assert [script.frames[0].open.expected_requests for script in two.scripts] == [0, 2]


def test_logits_are_not_sent_to_a_server_that_lacks_their_step() -> None:
    two = Servers(2)
    two.answer_steps(READ_ROW_0)
    pending = two.session.step({two.session.add(Request([1])): [2]})
    with pytest.raises(InvalidArgument, match="apply"):
        pending.edits()
    two.end(0)
    two.session.add(Request())
    pending.apply(zeros())
    assert two.kinds(0) == ["open", "add", "step"]
    assert two.kinds(1) == ["open", "add", "add", "step", "logits"]
    assert two.scripts[1].frames[1].add.requests[0].request.output_ids == b"\2\0\0\0"


def test_a_server_that_ends_while_histories_are_sent_again() -> None:
    two = Servers(2)
    handle = two.session.add(Request([1]))

    def request_history(frame: Any) -> dict[str, Any]:
        two.end(0)
        differs = failure(handle.slot, LogitportError("differs", code=LogitportError.NEED_SYNC))
        return {"edits": processing_pb2.StepEdits(failures=[differs])}

    two.scripts[0].answer = request_history
    result = two.session.step({handle: [2]}).apply(zeros())
    assert result.failures == {}
    assert two.kinds(1)[-1] == "step"


def test_edits_that_are_received_twice_are_applied_once() -> None:
    two = Servers(2)
    edits = RowEdits()
    edits.bias([3], [1.0])
    biased = Edits.pack([(1, edits)], VOCAB).to_proto()
    two.answer_steps({"edits": processing_pb2.StepEdits(logits_rows=bytes(4), edits=biased)})
    handles = [two.session.add(Request([1])) for _ in range(2)]
    pending = two.session.step(dict.fromkeys(handles, ()))
    pending._synchronized_answer()
    two.end(0)
    logits = zeros(2)
    pending.apply(logits)
    assert logits[1].tolist() == [0, 0, 0, 1]


def test_requests_lose_their_state_once_logits_were_sent() -> None:
    two = Servers(2)
    handles = [two.session.add(Request([1])) for _ in range(2)]

    def take_logits_and_end(frame: Any) -> dict[str, Any]:
        if frame.HasField("logits"):
            two.end(0)
            raise ServerUnavailable("gone")
        return READ_ROW_0 if frame.HasField("step") else two.scripts[0].correct(frame)

    two.scripts[0].answer = take_logits_and_end
    result = two.session.step(dict.fromkeys(handles, ())).apply(zeros(2), check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {handles[0]: StateLost}
    two.session.step({handles[1]: [2]}).apply(zeros())
    again = [frame.add for frame in two.scripts[1].frames if frame.HasField("add")]
    assert [request.slot for frame in again for request in frame.requests] == [handles[1].slot]


def test_a_name_is_sent_again_as_its_digest_at_admission() -> None:
    two = Servers(2)
    digest = "ab" * 32

    def with_chains(frame: Any) -> dict[str, Any]:
        reply = two.scripts[0].correct(frame)
        if frame.HasField("add"):
            reply["added"].chains[0].processors[:] = [digest, "thinking_budget"]
        return reply

    two.scripts[0].answer = with_chains
    two.session.add(Request(processors=[("team/x", {}), ("thinking_budget", {})]))
    two.end(0)
    two.session.add(Request())
    (again,) = two.scripts[1].frames[1].add.requests
    named = [(call.processor.WhichOneof("by"), call.processor.digest) for call in again.request.processors]
    assert named == [("digest", digest), ("builtin", "")]


def test_servers_that_end_again_at_once() -> None:
    four = Servers(4, reconnect_seconds=20.0)
    handle = four.session.add(Request([1]))
    four.end(0, 1)
    four.scripts[2].answer = lambda frame: (
        four.end(2) or four.scripts[2].correct(frame)  # type: ignore[func-returns-value]
    )
    four.session.step({handle: [2]}).apply(zeros())
    assert [four.kinds(which) for which in (1, 2, 3)] == [[], ["open"], ["open", "add", "step"]]
    assert four.session.reconnects == 2  # no session was ever opened on the second


def test_a_connection_that_is_lost_while_the_session_is_opened() -> None:
    def lost(frame: Any) -> dict[str, Any]:
        raise ServerUnavailable("Connection reset by peer", was_connected=True)

    scripts = [Script() for _ in range(3)]
    scripts[0].answer = scripts[1].answer = lost
    session = Servers(scripts, reconnect_seconds=20.0).session
    handle = session.add(Request([1]))
    assert session.step({handle: [2]}).apply(zeros()).failures == {}
    assert session.reconnects == 0
    assert [len(script.frames) for script in scripts] == [1, 1, 3]

    again = [Script() for _ in range(3)]
    again[0].answer = again[1].answer = lost
    with pytest.raises(ServerUnavailable, match="in time"):
        Servers(again)
    assert [len(script.frames) for script in again] == [1, 1, 0]
    assert again[1].closed


def test_a_server_that_is_lost_while_requests_are_restored() -> None:
    """The server has a session without its requests, which must not be used."""
    failing = [True, False]

    def restore() -> dict[str, LogitportError]:
        if failing.pop(0):
            raise ServerUnavailable("no answer")
        return {}

    four = Servers(4, restore=restore)
    handle = four.session.add(Request([1]))
    four.end(0)
    pending = four.session.step({handle: [2]})
    with pytest.raises(ServerUnavailable, match="no answer"):
        pending.apply(zeros())
    assert four.scripts[1].closed
    assert pending.apply(zeros()).failures == {}
    assert four.kinds(1) == ["open"]
    assert four.kinds(2) == ["open", "add", "step"]


def test_a_server_without_room_for_the_session() -> None:
    """It may still hold the session that was lost, or the next connection may be to another server."""
    refusals: list[bool] = []
    three = Servers(3, reconnect_seconds=20.0, refused=lambda: refusals.append(True))
    handle = three.session.add(Request([1]))
    three.end(0)
    three.scripts[1].refuse_to_send = LimitExceeded("all sessions are taken")
    assert three.session.step({handle: [2]}).apply(zeros()).failures == {}
    assert three.kinds(2) == ["open", "add", "step"]
    assert refusals == [True], "the server that was lost refused nothing"


def test_the_error_of_a_refused_registration_is_reported() -> None:
    digests = ["ab" * 32, "cd" * 32]
    two = Servers(2, restore=lambda: {digests[0]: AccessDenied("not here")})
    handles = [two.session.add(Request(processors=[(digest, {})])) for digest in digests]
    two.end(0)

    def lacks_all_processors(frame: Any) -> dict[str, Any]:
        failures = [failure(handle.slot, NotFound("no such digest")) for handle in handles]
        if frame.HasField("add"):
            chains = [processing_pb2.AdmittedChain()] * 2
            return {"added": processing_pb2.RequestsAdded(failures=failures, reads_logits=bytes(2), chains=chains)}
        return {"edits": processing_pb2.StepEdits(failures=failures)} if frame.HasField("step") else opened(frame)

    opened = two.scripts[1].correct
    two.scripts[1].answer = lacks_all_processors
    result = two.session.step(dict.fromkeys(handles, ())).apply(zeros(2), check=False)
    assert [type(result.failures[handle]) for handle in handles] == [AccessDenied, NotFound]


def test_a_server_that_refuses_the_session_at_first() -> None:
    three = Servers(3)
    handle = three.session.add(Request([1]))
    three.end(0)
    three.scripts[1].answer = lambda frame: {"error": to_proto(LimitExceeded("max_sessions"))}
    pending = three.session.step({handle: [2]})
    with pytest.raises(LimitExceeded):
        pending.apply(zeros())
    assert pending.apply(zeros()).failures == {}


def test_only_a_request_that_is_too_large_for_the_next_server_fails() -> None:
    two = Servers(2)
    large, small = two.session.add(Request([1], [2] * 5_000_000)), two.session.add(Request([1]))
    two.end(0)
    correct = two.scripts[1].correct

    def answer(frame: Any) -> dict[str, Any]:
        if len(frame.SerializeToString()) > 1_000_000:
            return {"error": to_proto(LimitExceeded("max_message_bytes"))}
        if frame.HasField("step"):
            unknown = failure(large.slot, NotFound("no request"))
            return {"edits": processing_pb2.StepEdits(failures=[unknown])}
        return dict(correct(frame))

    two.scripts[1].answer = answer
    result = two.session.step({large: [2], small: [2]}).apply(zeros(2), check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {large: LimitExceeded}
