"""Requests that take part in steps before their admission has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    ProcessorFailed,
    Request,
    ServerUnavailable,
)
from logitport.errors import to_proto
from logitport.session.requests import admissions
from logitport_proto import common_pb2, processing_pb2
from tests.client.scripted import (
    VOCAB,
    Reconnecting,
    Restoring,
    Script,
    Servers,
    admitted,
    edits_reply,
    failure,
    int32,
    kinds,
    zeros,
)

if TYPE_CHECKING:
    from logitport.session import Session

FAST = Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})])
SLOW = Request([1], processors=[("team/slow", {})])


def unread(script: Script) -> int:
    """How many frames have no reply yet."""
    return len(script.frames) - script.answered


@pytest.fixture
def two() -> Reconnecting:
    """A session with two servers, which admit slow requests in the background."""
    made = Reconnecting(reconnect_seconds=5.0)
    made.servers = [Restoring(script) for script in made.scripts]
    return made


def session_of(*refused: int, error: LogitportError | None = None) -> tuple[Session, Script]:
    """A session whose server refuses these slots, with the error."""
    script = Script()
    error = InvalidArgument("refuse is set") if error is None else error

    def answer(frame: Any) -> dict[str, Any]:
        if frame.HasField("add"):
            slots = [entry.slot for entry in frame.add.requests]
            failures = [failure(slot, error) for slot in slots if slot in refused]
            return {
                "added": processing_pb2.RequestsAdded(
                    failures=failures, reads_logits=bytes(len(slots)), chains=admitted(frame)
                )
            }
        if frame.HasField("step"):
            slots = np.frombuffer(frame.step.slots, "<i4").tolist()
            missing = [failure(slot, NotFound("no request")) for slot in slots if slot in refused]
            return edits_reply(failures=missing)
        return dict(Script.correct(frame))

    script.answer = answer
    return Servers([script]).session, script


def test_the_replies_are_received_with_that_of_the_step(opened: Any) -> None:
    session, script = opened()
    running, ended = session.add(FAST), session.add(FAST)
    session.remove(ended)
    (entered,) = session.enter([FAST])
    assert (entered.slot, entered.generation, len(session)) == (1, 2, 2)
    pending = session.step({running: [2], entered: []})
    assert (kinds(script)[-3:], unread(script)) == (["remove", "add", "step"], 3)
    assert script.frames[-2].add.in_background
    assert entered.processors == ()
    assert pending.apply(zeros(2)).failures == {}
    assert (unread(script), entered.processors, pending.reads_logits) == (0, ("key",), False)
    session.step({running: [2], entered: [2]}).apply(zeros(2))
    assert script.frames[-1].step.base_lengths == int32(2, 1)


def test_several_requests_share_a_frame(opened: Any) -> None:
    session, script = opened()
    handles = session.enter([FAST, FAST])
    assert session.enter([]) == []
    assert [len(frame.add.requests) for frame in script.frames[1:]] == [2]
    session.step(dict.fromkeys(handles, ())).apply(zeros(2))


def test_a_refused_request_fails_in_its_steps_and_the_others_go_on() -> None:
    session, script = session_of(1)
    good, refused, other = session.enter([FAST, FAST, FAST])
    for ids in ([], [2]):
        result = session.step({good: ids, refused: ids, other: ids}).apply(zeros(3), check=False)
        assert {handle: str(error) for handle, error in result.failures.items()} == {refused: "refuse is set"}
    assert kinds(script) == ["open", "add", "step", "step"]
    session.remove(refused)
    (again,) = session.enter([FAST])
    assert (again.slot, again.generation) == (1, 3)
    result = session.step({good: [2], again: []}).apply(zeros(2), check=False)
    assert list(result.failures) == [again], "it is refused, too"


def test_a_refusal_is_the_error_of_a_registration_that_failed(two: Reconnecting) -> None:
    session, _ = session_of(0, error=NotFound("no such processor"))
    (handle,) = session.enter([Request([1], processors=[("ab" * 32, {})])])
    session._table.refused["ab" * 32] = LimitExceeded("too many processors")
    result = session.step({handle: []}).apply(zeros(), check=False)
    assert isinstance(result.failures[handle], LimitExceeded)


def test_a_step_waits_for_an_admission_in_the_background(two: Reconnecting) -> None:
    server, session = two.servers[0], two.session
    fast, slow = session.enter([FAST, SLOW])
    collected: list[int] = []

    def end_at_second() -> None:
        collected.append(1)
        if len(collected) == 2:
            server.end(1, 1)

    server.on_collect = end_at_second
    pending = session.step({fast: [2], slow: [2]})
    assert pending.apply(zeros(2)).failures == {}
    assert two.kinds(0) == ["open", "add", "step", "add", "add", "step"]
    repeated = two.scripts[0].frames[-1].step
    assert (repeated.base_lengths, repeated.new_token_ids) == (int32(2, 2), b""), "the ids are in the histories"
    session.step({fast: [3], slow: [3]}).apply(zeros(2))
    assert two.kinds(0)[-1:] == ["step"]


def test_a_step_does_not_wait_for_requests_of_other_steps(two: Reconnecting) -> None:
    server, session = two.servers[0], two.session
    fast, slow = session.enter([FAST, SLOW])
    for _ in range(2):
        session.step({fast: []}).apply(zeros())
    assert two.kinds(0) == ["open", "add", "step", "step"]
    server.end(1, 1)
    assert session.step({fast: [], slow: []}).apply(zeros(2)).failures == {}
    assert two.kinds(0)[4:] == ["step", "add", "step"]


def test_an_admission_that_takes_too_long_fails_only_its_request(two: Reconnecting) -> None:
    session = two.session
    (fast,) = session.enter([FAST])
    (slow,) = session.enter([SLOW], seconds=0.0)
    result = session.step({fast: [], slow: []}).apply(zeros(2), check=False)
    (error,) = result.failures.values()
    assert isinstance(error, ProcessorFailed)
    assert (error.code, "took more than 0 s to admit it" in str(error)) == (ProcessorFailed.TIMED_OUT, True)
    assert (list(result.failures), two.scripts[0].frames[-1].remove.slots) == ([slow], int32(1))
    two.servers[0].end(1, 1)  # too late
    result = session.step({fast: [2], slow: [2]}).apply(zeros(2), check=False)
    assert list(result.failures) == [slow]


@pytest.mark.parametrize("request_", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("where", ["before the step", "at the step", "in its reply"])
def test_a_server_that_is_lost_before_its_reply(two: Reconnecting, request_: Request, where: str) -> None:
    session = two.session
    running = session.add(FAST)
    if where == "before the step":
        two.end(0)
    (entered,) = session.enter([request_])
    if where == "at the step":
        two.end(0)
    pending = session.step({running: [2], entered: [2]})
    if where == "in its reply":
        two.end(0)
        two.scripts[0].receive = lambda: end_now(two)  # type: ignore[method-assign]
    two.servers[1].on_collect = lambda: two.servers[1].end(1, 1)
    assert pending.apply(zeros(2)).failures == {}
    assert session.reconnects == 1
    sent = [entry for frame in two.scripts[1].frames for entry in frame.add.requests]
    assert sorted((entry.slot, entry.generation) for entry in sent) == [(0, 0), (1, 1)]
    assert session.step({running: [3], entered: [3]}).apply(zeros(2)).failures == {}
    assert two.scripts[1].frames[-1].step.base_lengths == int32(2, 2)


def end_now(two: Reconnecting) -> bytes:
    raise ServerUnavailable("gone", was_connected=True)


def test_a_request_that_is_removed_before_it_is_answered(opened: Any) -> None:
    session, script = opened()
    running = session.add(FAST)
    (gone,) = session.enter([FAST])
    session.remove(gone)
    (next_one,) = session.enter([FAST])
    assert (gone.slot, next_one.slot) == (1, 1), "the same slot, in frames that the server handles in order"
    assert session.step({running: [], next_one: []}).apply(zeros(2)).failures == {}
    assert kinds(script) == ["open", "add", "add", "remove", "add", "step"]
    assert (gone.processors, next_one.processors) == ((), ("key",))
    with pytest.raises(NotFound):
        session.step({gone: []})


def test_a_request_that_is_removed_between_its_step_and_the_reply() -> None:
    session, _ = session_of(1)
    good, refused = session.enter([FAST, FAST])
    pending = session.step({good: [], refused: []})
    session.remove(refused)
    result = pending.apply(zeros(2), check=False)
    assert list(result.failures) == [refused]


def test_a_history_that_differs_is_sent_again(opened: Any) -> None:
    session, script = opened()
    (entered,) = session.enter([FAST])
    replies = [
        edits_reply(failures=[failure(0, LogitportError("differs", code=LogitportError.NEED_SYNC))]),
        edits_reply(),
    ]
    correct = script.correct
    script.answer = lambda frame: replies.pop(0) if frame.HasField("step") else correct(frame)
    assert session.step({entered: [2]}).apply(zeros()).failures == {}
    assert (kinds(script), session.resyncs) == (["open", "add", "step", "add", "step"], 1)


def test_a_refused_frame_fails_only_the_requests_that_are_refused_alone(opened: Any) -> None:
    session, script = opened()
    correct = script.correct

    def answer(frame: Any) -> dict[str, Any]:
        if any(entry.slot == 1 for entry in frame.add.requests):
            return {"error": to_proto(InvalidArgument("no frame"))}
        if frame.HasField("step"):
            # The frame was refused, then each request was sent alone.
            steps = kinds(script).count("step")
            return edits_reply(
                failures=[failure(slot, NotFound("none")) for slot in ((0, 1, 2) if steps == 1 else (1,))]
            )
        return dict(correct(frame))

    script.answer = answer
    handles = session.enter([FAST] * 3)
    result = session.step(dict.fromkeys(handles, ())).apply(zeros(3), check=False)
    assert {handle: str(error) for handle, error in result.failures.items()} == {handles[1]: "no frame"}
    assert [len(frame.add.requests) for frame in script.frames if frame.HasField("add")] == [3, 1, 1, 1]
    assert kinds(script)[-1] == "step"


def test_a_large_frame_is_awaited(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "_MAX_POSTED_BYTES", 1)
    session, script = opened()
    correct = script.correct
    (first,) = session.enter([FAST])
    assert (unread(script), first.processors) == (0, ("key",))
    script.answer = lambda frame: (
        {"error": to_proto(LimitExceeded("too large"))} if frame.HasField("add") else correct(frame)
    )
    with pytest.raises(LimitExceeded, match="too large"):
        session.enter([FAST])
    assert (kinds(script)[-2:], len(session)) == (["add", "remove"], 1)


def test_none_is_sent_if_one_cannot_be_sent(opened: Any) -> None:
    session, script = opened()
    with pytest.raises(InvalidArgument):
        session.enter([FAST, Request([2**40])])
    with pytest.raises(LimitExceeded):
        session.enter([FAST] * 4)
    assert (kinds(script), len(session)) == (["open"], 0)


def test_drafts_of_a_request_that_is_pending(two: Reconnecting) -> None:
    session, server = two.session, two.servers[0]
    fast, slow = session.enter([FAST, SLOW])
    server.on_collect = lambda: server.end(1, 1)
    step = session.step({fast: [], slow: []}, drafts={slow: [2, 3]}, draft_parents={slow: [-1, -1]})
    assert step.apply(zeros(4)).failures == {}
    first, repeated = (frame.step for frame in two.scripts[0].frames if frame.HasField("step"))
    assert repeated.draft_token_ids == first.draft_token_ids == int32(2, 3)
    assert repeated.draft_parents == int32(-1, -1)


def test_edits_and_events_after_an_admission(opened: Any) -> None:
    session, script = opened()
    script.answer = lambda frame: (
        edits_reply(events=[common_pb2.Event(slot=0, processor="key", position=0, name="found")])
        if frame.HasField("step")
        else Script.correct(frame)
    )
    (entered,) = session.enter([FAST])
    pending = session.step({entered: []})
    pending.edits()
    assert [event.name for event in entered.report.events] == ["found"]


def test_a_session_with_an_unanswered_admission_does_not_move(two: Reconnecting) -> None:
    session = two.session
    session._requests._moves = moves = _Moves()
    session.enter([SLOW])
    session._channel.should_move = True
    session._requests.move()
    assert moves.taken == 0


def test_a_session_with_an_admission_before_each_step_moves() -> None:
    session, script = session_of()
    answer = script.answer

    def answer_and_drain(frame: Any) -> dict[str, Any]:
        reply = answer(frame)
        if frame.HasField("step"):
            reply["edits"].should_move = True
        return reply

    script.answer = answer_and_drain
    session._requests._moves = moves = _Moves()
    for _ in range(3):
        (entered,) = session.enter([FAST])
        session.step({entered: []}).apply(zeros())
        session.remove(entered)
    assert moves.taken == 2


class _Moves:
    taken = 0

    def take(self, count: int) -> None:
        self.taken += 1

    def cancel(self) -> None:
        pass


def test_the_buffer_waits_for_admissions_that_could_retire_it(two: Reconnecting) -> None:
    session = two.session
    two.servers[0].on_collect = lambda: two.servers[0].end(0, 0)
    session.enter([SLOW])
    session.logits_buffer(1)
    assert (two.kinds(0), unread(two.scripts[0])) == (["open", "add", "add"], 0)


def test_the_buffer_waits_for_the_admission_of_a_request_that_was_removed(opened: Any) -> None:
    session, script = opened()
    (gone,) = session.enter([FAST])
    session.remove(gone)
    session.logits_buffer(1)
    assert unread(script) == 0


def test_requests_that_are_removed_before_any_step_leave_nothing(opened: Any) -> None:
    session, _ = opened()
    for _ in range(200):
        session.remove(*session.enter([FAST]))
    assert len(session._requests.admissions.answers) + len(session._channel.sent) <= 20


def test_after_close(opened: Any) -> None:
    session, _ = opened()
    (entered,) = session.enter([FAST])
    session.close()
    assert len(session) == 0
    assert session.report_changes == {}
    with pytest.raises(LogitportError):
        session.step({entered: []})


def test_logits_of_another_width_are_refused_once_it_is_admitted(opened: Any) -> None:
    session, _ = opened()
    (entered,) = session.enter([FAST])
    pending = session.step({entered: []})
    with pytest.raises(InvalidArgument, match="this step needs"):
        pending.apply(np.zeros((1, VOCAB + 1), np.float32))
    pending.apply(zeros())
    with pytest.raises(InvalidArgument, match="was applied already"):
        pending.apply(zeros())
