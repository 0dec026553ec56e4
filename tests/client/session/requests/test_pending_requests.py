"""Requests that scripted servers admit in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import (
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    Request,
    ServerUnavailable,
    SessionClosed,
)
from logitport.errors import to_proto
from logitport_proto import processing_pb2
from tests.client.scripted import Background, Reconnecting, failure, int32, kinds, zeros

if TYPE_CHECKING:
    from logitport.session import Session


SLOW = Request([1], processors=[("team/slow", {})])


@pytest.fixture
def background(opened: Any) -> tuple[Session, Background]:
    session, script = opened()
    return session, Background(script)


def test_a_request_is_pending_until_a_poll_reports_it(background: Any) -> None:
    session, server = background
    running = session.add(Request([1]))
    pending = session.begin_add([SLOW])[0]
    assert not pending.done
    assert (pending.handle, pending.error, len(session)) == (None, None, 1)
    assert repr(pending) == "<PendingRequest '' pending>"
    assert session.poll() == []
    session.step({running: [2]}).apply(zeros())
    server.end(1, 1, reads_logits=True, chain={"processors": ["ab" * 32]})
    assert session.poll() == [], "the last step reported none"
    assert session.poll() == [pending], "without a step in between, the server is asked again"
    assert session.poll() == []
    assert pending.done
    assert (pending.handle.reads_logits, pending.handle.digests(), len(session)) == (True, ["ab" * 32], 2)
    session.step({running: [], pending.handle: []})
    assert server.script.frames[-1].step.slots == int32(0, 1)


def test_a_refused_request_has_its_error(background: Any) -> None:
    session, server = background
    pending = session.begin_add([SLOW])[0]
    server.end(0, 0, InvalidArgument("refuse is set"))
    assert session.poll() == [pending]
    assert (type(pending.error), pending.handle) == (InvalidArgument, None)
    with pytest.raises(InvalidArgument, match="refuse is set"):
        pending.result()
    again = session.add(Request([1]))
    assert (again.slot, again.generation) == (0, 1), "the slot is free, and the generation is new"


def test_a_server_that_admits_at_once(opened: Any) -> None:
    session, script = opened()
    pending = session.begin_add([SLOW])[0]
    assert (pending.done, pending.handle.slot, len(session)) == (True, 0, 1)
    assert session.poll() == [pending]
    assert session.poll() == []
    assert kinds(script) == ["open", "add"]
    script.answer = lambda frame: {
        "added": processing_pb2.RequestsAdded(
            failures=[failure(1, NotFound("none"))],
            reads_logits=b"\0",
            chains=[processing_pb2.AdmittedChain()],
        )
    }
    refused = session.begin_add([SLOW])[0]
    assert (type(refused.error), len(session)) == (NotFound, 1)
    assert session.poll() == [refused]


def test_several_requests_begin_with_one_frame(background: Any) -> None:
    session, server = background
    pending = session.begin_add([SLOW, Request([1]), SLOW])
    assert kinds(server.script) == ["open", "add"]
    assert [(one.slot, one.generation) for one in server.script.frames[1].add.requests] == [(0, 0), (1, 1), (2, 2)]
    server.end(0, 0)
    server.end(1, 1, InvalidArgument("refuse is set"))
    server.end(2, 2)
    assert session.poll() == pending
    assert [type(one.error) for one in pending] == [type(None), InvalidArgument, type(None)]
    assert len(session) == 2
    session.step({pending[0].handle: [], pending[2].handle: []})
    assert server.script.frames[-1].step.slots == int32(0, 2)
    assert session.begin_add([]) == []
    assert kinds(server.script)[-1] == "step"


def test_none_of_several_requests_begins_if_one_cannot_be_sent(background: Any) -> None:
    session, server = background
    with pytest.raises(InvalidArgument):
        session.begin_add([SLOW, Request([2**40])])
    session.begin_add([SLOW])
    with pytest.raises(LimitExceeded, match="2 of 3 slots are free"):
        session.begin_add([SLOW] * 3)
    assert [one.candidate.slot for one in session.begin_add([SLOW] * 2)] == [1, 2]
    assert kinds(server.script) == ["open", "add", "add"]


def test_requests_of_earlier_frames_are_dropped_if_a_later_frame_fails(background: Any) -> None:
    session, server = background
    server.script.answer = lambda frame: (
        {"error": to_proto(LimitExceeded("full"))} if len(frame.add.requests) == 2 else server.answer(frame)
    )
    with pytest.raises(LimitExceeded, match="full"):
        session.begin_add([Request([1], [2] * 1_500_000), SLOW, SLOW])
    assert kinds(server.script) == ["open", "add", "add", "remove"]
    assert server.script.frames[-1].remove.slots == int32(0, 1, 2), "the server ignores those that it has not begun"
    assert session.poll() == []
    assert session.begin_add([SLOW])[0].candidate.slot == 0


def test_several_requests_are_removed_with_one_frame(background: Any) -> None:
    session, server = background
    first, second, third = (session.add(Request([1])) for _ in range(3))
    session.remove(first, third)
    assert kinds(server.script)[-2:] == ["add", "remove"]
    assert server.script.frames[-1].remove.slots == int32(0, 2)
    assert server.script.frames[-1].remove.generations == int32(0, 2)
    for handles in ((second, first), (second, second)):
        with pytest.raises(NotFound):
            session.remove(*handles)
    session.remove()
    assert (len(session), second.removed, kinds(server.script)[-2:]) == (1, False, ["add", "remove"])


def test_pending_requests_occupy_slots(background: Any) -> None:
    session, server = background
    pending = [session.begin_add([SLOW])[0] for _ in range(3)]
    with pytest.raises(LimitExceeded, match="all 3 slots are taken"):
        session.add(SLOW)
    with pytest.raises(LimitExceeded, match="all 3 slots are taken"):
        session.begin_add([SLOW])
    pending[1].cancel()
    assert session.add(Request([1])).slot == 1
    assert [(one.slot, one.generation) for frame in server.script.frames for one in frame.add.requests] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (1, 3),
    ]


def test_cancelling_a_pending_request(background: Any) -> None:
    session, server = background
    pending = session.begin_add([SLOW])[0]
    pending.cancel()
    pending.cancel()
    assert (pending.cancelled, pending.done) == (True, True)
    assert kinds(server.script) == ["open", "add", "remove"]
    assert server.script.frames[-1].remove.generations == int32(0)
    assert session.poll() == []
    with pytest.raises(NotFound, match=r"<PendingRequest '' cancelled> was cancelled"):
        pending.result()
    server.end(0, 0)
    other = session.begin_add([SLOW])[0]
    assert (pending.handle, other.done, other.candidate.slot) == (None, False, 0), "the end of another generation"


def test_cancelling_an_admitted_request_removes_it(background: Any) -> None:
    session, server = background
    pending = [session.begin_add([SLOW])[0] for _ in range(2)]
    server.end(0, 0)
    server.end(1, 1)
    assert pending[1].result() is pending[1].handle
    assert pending[0].done
    pending[0].cancel()
    pending[0].cancel()
    assert session.poll() == [], "one was waited for, the other one was cancelled"
    assert (len(session), pending[0].handle.removed) == (1, True)
    session.remove(pending[1].handle)
    pending[1].cancel()
    assert kinds(server.script)[-2:] == ["remove", "remove"]


def test_waiting_for_a_request(background: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, server = background
    now = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        pauses.append(seconds)
        if now[0] > 1.0:
            server.end(0, 0)

    monkeypatch.setattr("logitport.system.backoff.time.sleep", sleep)
    monkeypatch.setattr("logitport.system.backoff.time.monotonic", lambda: now[0])
    pending = session.begin_add([SLOW])[0]
    with pytest.raises(ServerUnavailable, match=r"within 0\.5 s"):
        pending.result(timeout=0.5)
    assert sum(pauses) == pytest.approx(0.5)
    assert len(pauses) < 20
    assert pending.result() is pending.handle
    assert 1.0 < now[0] < 1.1
    assert session.poll() == []
    assert pending.result(timeout=0) is pending.handle


def test_a_closed_session_cancels_its_pending_requests(background: Any) -> None:
    session, server = background
    pending = session.begin_add([SLOW])[0]
    session.close()
    assert pending.cancelled
    pending.cancel()
    with pytest.raises(NotFound, match="its session was closed"):
        pending.result()
    assert session.poll() == []
    assert kinds(server.script) == ["open", "add"]


@pytest.mark.parametrize(
    "fields",
    [
        {"reads_logits": b""},
        {"pending": b"\1\1"},
        {"pending": b"\1", "chains": [{}, {}]},
        {"chains": []},
        {"reads_logits": b"\0\0"},
    ],
)
def test_columns_of_another_length_are_an_error(opened: Any, fields: dict[str, Any]) -> None:
    session, script = opened()
    added = processing_pb2.RequestsAdded(**{"reads_logits": b"\0", "chains": [{}], **fields})
    script.answer = lambda frame: {"added": added}
    with pytest.raises(LogitportError, match="1 requests were added, but the columns"):
        session.begin_add([SLOW])


def test_a_reconnect_while_a_request_is_begun() -> None:
    two = Reconnecting()
    first = two.session.begin_add([SLOW])[0]
    two.end(0)
    second = two.session.begin_add([SLOW])[0]
    assert [(one.slot, one.generation) for frame in two.scripts[1].frames for one in frame.add.requests] == [
        (0, 0),
        (1, 1),
    ]
    two.servers[1].end(1, 1)
    two.servers[1].end(0, 0)
    assert two.session.poll() == [second, first]


def test_a_cancelled_request_is_not_begun_again() -> None:
    two = Reconnecting()
    pending = two.session.begin_add([SLOW])[0]
    two.end(0)
    pending.cancel()
    assert kinds(two.scripts[1]) == ["open", "remove"]


def test_a_slot_that_becomes_free_while_another_request_is_added() -> None:
    """The next server refuses a pending request while the reconnect repeats the frame of a new one."""
    two = Reconnecting()
    refused = two.session.begin_add([Request([1], processors=[("team/refused", {})])])[0]
    two.end(0)
    answer = two.servers[1].answer
    two.scripts[1].answer = lambda frame: (
        {"error": to_proto(LimitExceeded("max_message_bytes"))} if "team/refused" in str(frame) else answer(frame)
    )
    two.session.add(SLOW)
    assert type(refused.error) is LimitExceeded
    later = [two.session.begin_add([SLOW])[0].candidate for _ in range(2)]
    sent = {one.generation: one.slot for frame in two.scripts[1].frames for one in frame.add.requests}
    assert sent == {0: 0, 1: 1, 2: 0, 3: 2}
    assert [(one.slot, one.generation) for one in later] == [(0, 2), (2, 3)]


def test_a_session_that_cannot_reconnect() -> None:
    two = Reconnecting()
    pending = two.session.begin_add([SLOW])[0]
    two.end(0, 1)
    with pytest.raises(ServerUnavailable):
        pending.result()
    assert not pending.done
    two.session.close()
    with pytest.raises(SessionClosed):
        two.session.begin_add([SLOW])
