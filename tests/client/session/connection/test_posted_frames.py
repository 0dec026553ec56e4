"""Frames that are sent without waiting for their replies: the replies arrive with the next ones, in order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LimitExceeded, Request, ServerUnavailable
from logitport.errors import to_proto
from logitport.session.connection import frame_channel
from logitport_proto import processing_pb2
from tests.client.scripted import Script, Servers, end_server, int32, kinds, zeros

if TYPE_CHECKING:
    from logitport.session import Session

# Seconds that a server states for a step, and for an admission.
STEP, ADD = 3.0, 7.0
MARGIN = 10.0


class Limits(Script):
    """Keeps the limit of each frame when it was sent, and when its reply was received."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[float] = []
        self.received: list[float] = []

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        super().send(frame)
        self.sent.append(self.reply_limit)

    def receive(self) -> bytes:
        self.received.append(self.reply_limit)
        return super().receive()

    @staticmethod
    def correct(frame: processing_pb2.SessionRequest) -> dict[str, Any]:
        reply = Script.correct(frame)
        if frame.HasField("open"):
            reply["opened"].step_deadline_seconds, reply["opened"].add_deadline_seconds = STEP, ADD
        return reply


def requests(session: Session, count: int) -> list[Any]:
    return [session.add(Request([1])) for _ in range(count)]


def test_a_removal_is_sent_at_once_and_answered_with_the_next_step(opened: Any) -> None:
    session, script = opened()
    first, second = requests(session, 2)
    session.remove(first)
    assert (kinds(script)[-1], len(script.frames) - script.answered, len(session)) == ("remove", 1, 1)
    assert session._channel.unanswered is None, "no reply is waited for, so that an idle server is not checked"
    pending = session.step({second: [2]})
    assert (kinds(script)[-2:], len(script.frames) - script.answered) == (["remove", "step"], 2)
    assert session._channel.unanswered == (script, 5)
    pending.apply(zeros())
    assert script.answered == len(script.frames)


def test_a_removal_after_a_step_waits_for_the_step_only(opened: Any) -> None:
    session, script = opened()
    first, second = requests(session, 2)
    pending = session.step({first: [], second: []})
    session.remove(first)
    assert len(script.frames) - script.answered == 1
    pending.apply(zeros(2))
    session.step({second: [2]}).apply(zeros())
    assert script.answered == len(script.frames)


def test_an_admission_receives_the_replies_before_its_own(opened: Any) -> None:
    session, script = opened()
    (first,) = requests(session, 1)
    session.remove(first)
    again = session.add(Request([1]))
    assert (again.slot, again.generation, script.answered) == (0, 1, len(script.frames))


def test_few_replies_are_left_unread(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_channel, "_MAX_POSTED", 2)
    session, script = opened()
    unread = []
    for handle in requests(session, 3):
        session.remove(handle)
        unread.append(len(script.frames) - script.answered)
    assert unread == [1, 2, 1]


def test_the_time_for_a_frame_includes_that_of_the_frames_before_it() -> None:
    script = Limits()
    session = Servers([script]).session
    first, second = requests(session, 2)
    session.remove(first)
    session.remove(second)
    session.add(Request([1]))
    step, add = STEP + MARGIN, ADD + MARGIN
    assert script.sent[-3:] == [step, 2 * step, 2 * step + add]
    assert script.received[-3:] == [step, step, add]


@pytest.mark.parametrize("next_call", ["step", "add", "logits_buffer"])
def test_a_refused_removal_ends_the_connection(next_call: str) -> None:
    """The server may hold the request still, and would refuse another one in its slot."""
    two = Servers(2, reconnect_seconds=5.0)
    correct = two.scripts[0].correct
    two.scripts[0].answer = lambda frame: (
        {"error": to_proto(LimitExceeded("too many"))} if frame.HasField("remove") else correct(frame)
    )
    first, second = requests(two.session, 2)
    two.session.remove(first)
    if next_call == "add":
        two.session.add(Request([1]))
    elif next_call == "step":
        two.session.step({second: [2]}).apply(zeros())
    else:
        two.scripts[0].shares_memory = True
        two.session.logits_buffer(1)
    assert two.session.reconnects == 1
    sent = [entry.slot for frame in two.scripts[1].frames for entry in frame.add.requests]
    assert sent == ([1] if next_call != "add" else [1, 0])
    two.session.step({second: [3]}).apply(zeros())


def test_a_reply_of_another_kind_ends_the_connection() -> None:
    two = Servers(2, reconnect_seconds=5.0)
    correct = two.scripts[0].correct
    two.scripts[0].answer = lambda frame: (
        {"edits": processing_pb2.StepEdits()} if frame.HasField("remove") else correct(frame)
    )
    first, second = requests(two.session, 2)
    two.session.remove(first)
    two.session.step({second: [2]}).apply(zeros())
    assert two.session.reconnects == 1
    assert two.scripts[1].frames[-1].step.base_lengths == int32(2), "the history includes the new id"


def test_a_server_that_is_lost_with_an_unanswered_removal() -> None:
    two = Servers(2, reconnect_seconds=5.0)
    first, second = requests(two.session, 2)
    two.session.remove(first)
    pending = two.session.step({second: [2]})
    end_server(two.scripts[0])

    def lost(_: Any) -> dict[str, Any]:
        raise ServerUnavailable("gone")

    two.scripts[0].answer = lost
    pending.apply(zeros())
    assert two.session.reconnects == 1
    assert two.kinds(1) == ["open", "add", "step"]
    assert [entry.slot for entry in two.scripts[1].frames[1].add.requests] == [1]


def test_a_removal_that_cannot_be_sent_is_sent_to_the_next_server() -> None:
    two = Servers(2, reconnect_seconds=5.0)
    first, _ = requests(two.session, 2)
    two.end(0)
    two.session.remove(first)
    assert two.kinds(1) == ["open", "add", "remove"]


class Holds(Script):
    """Keeps the number of frames that were sent when frames began to be held, and when they were flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self.flushed: list[int] = []

    def hold(self) -> None:
        self.held.append(len(self.frames))

    def flush(self) -> None:
        self.flushed.append(len(self.frames))


def test_changes_are_sent_together_with_their_step(opened: Any) -> None:
    session, script = opened(Holds())
    first, second = requests(session, 2)
    sent = len(script.frames)
    with session.together():
        session.remove(first)
        with session.together():
            (third,) = session.enter([Request([1])])
        pending = session.step({second: [2], third: []})
    assert kinds(script)[sent:] == ["remove", "add", "step"]
    assert (script.held, script.flushed) == ([sent], [sent + 3])
    pending.apply(zeros(2))
    with session.together(), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    assert len(script.held) == len(script.flushed) == 2


@pytest.mark.parametrize("timed_out", [False, True])
def test_a_connection_that_is_lost_while_frames_are_held(opened: Any, timed_out: bool) -> None:
    session, script = opened(Holds())
    (first,) = requests(session, 1)

    def flush() -> None:
        raise ServerUnavailable("gone", was_connected=True, timed_out=timed_out)

    script.flush = flush
    with pytest.raises(ServerUnavailable) if timed_out else nullcontext(), session.together():
        session.remove(first)
    assert len(session) == 0
    with pytest.raises(ZeroDivisionError), session.together():
        raise ZeroDivisionError
