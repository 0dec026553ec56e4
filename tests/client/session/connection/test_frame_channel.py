"""A session against a scripted server: frames, requests, handles, steps and repeated histories."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    Request,
    RequestsFailed,
    SessionClosed,
    StateLost,
)
from logitport.session.connection import frame_channel
from logitport_proto import common_pb2, processing_pb2
from tests.client.scripted import VOCAB, Script, edits_reply, failure, int32, kinds, zeros
from tests.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("rows", [-1, 1.5, "2", None])
def test_a_buffer_with_an_invalid_number_of_rows(opened: Any, rows: Any) -> None:
    session, _ = opened()
    with pytest.raises(InvalidArgument, match=r"rows is .*; pass a whole number, 0 or more"):
        session.logits_buffer(rows)


def test_slots_are_reused_with_another_generation(opened: Any) -> None:
    session, _ = opened()
    assert session, "also without requests"
    first, second = session.add(Request()), session.add(Request())
    session.remove(first)
    third = session.add(Request())
    assert (first.slot, second.slot, third.slot) == (0, 1, 0)
    assert len({first.generation, second.generation, third.generation}) == 3
    session.add(Request())
    with pytest.raises(LimitExceeded, match="all 3 slots are taken; remove requests"):
        session.add(Request())
    assert len(session) == 3


def test_a_large_max_requests_allocates_nothing_in_advance(opened: Any) -> None:
    script = type(opened()[1])()
    script.answer = lambda frame: {"opened": processing_pb2.SessionOpened(max_requests=1_000_000)}
    tracemalloc.start()
    try:
        opened(script)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_refused_request_takes_no_slot(opened: Any) -> None:
    session, script = opened()
    script.answer = lambda frame: {
        "added": processing_pb2.RequestsAdded(
            failures=[failure(0, NotFound("none"))],
            reads_logits=b"\0",
            chains=[processing_pb2.AdmittedChain()],
        )
    }
    with pytest.raises(NotFound):
        session.add(Request())
    script.answer = script.correct
    assert session.add(Request()).slot == 0
    assert len(session) == 1


@pytest.mark.parametrize("wrong", [[VOCAB], [-1], [1, -1], [1.5], ["x"], [None], [2**40]])
@pytest.mark.parametrize("as_drafts", [False, True])
def test_invalid_ids_fail_only_their_request(opened: Any, wrong: Any, as_drafts: bool) -> None:
    session, script = opened()
    bad, good = session.add(Request([1])), session.add(Request([1]))

    def accept_requests(frame: Any) -> dict[str, Any]:
        return edits_reply(failures=[failure(0, NotFound("slot 0 holds no request"))])

    script.answer = lambda frame: accept_requests(frame) if frame.HasField("step") else script.correct(frame)
    if as_drafts:
        pending = session.step({bad: [], good: [2]}, drafts={bad: wrong, good: [3]})
    else:
        pending = session.step({bad: wrong, good: [2]})
    assert kinds(script) == ["open", "add", "add", "remove", "step"]
    assert script.frames[-2].remove.slots == int32(0)
    assert script.frames[-1].step.new_token_ids == int32(2)
    result = pending.apply(zeros(2 + as_drafts * (len(wrong) + 1)), check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {bad: InvalidArgument}
    assert (bad.history.token_ids.tolist(), good.history.token_ids.tolist()) == ([1], [1, 2])
    again = session.step({bad: [2], good: [3]}).apply(zeros(2), check=False)
    assert isinstance(again.failures[bad], InvalidArgument), "its history is not what the engine has"


def test_edits_are_returned_and_not_applied(opened: Any) -> None:
    session, script = opened()
    failing, right = session.add(Request()), session.add(Request())
    script.answer = lambda frame: edits_reply(failures=[failure(0, StateLost("gone"))])
    pending = session.step({failing: [], right: []})
    assert pending.result is None
    with pytest.raises(RequestsFailed) as raised:
        pending.edits()
    assert list(raised.value.failures) == [failing]
    assert len(pending.edits(check=False)) == 0
    assert pending.result is raised.value.result
    script.answer = lambda frame: edits_reply(logits_rows=int32(1))
    pending = session.step({failing: [], right: []})
    with pytest.raises(InvalidArgument, match=r"rows \[1\].*apply\(logits\)"):
        pending.edits()
    script.answer = script.correct
    pending.apply(zeros(2))


def differs_once(script: Any, *slots: int) -> None:
    """Make the server reply NEED_SYNC to one step, for these slots."""
    differs = LogitportError("differs", code=LogitportError.NEED_SYNC)
    answers = iter([edits_reply(failures=[failure(slot, differs) for slot in slots])])
    script.answer = lambda frame: (
        next(answers, script.correct(frame)) if frame.HasField("step") else script.correct(frame)
    )


def test_later_changes_to_the_engine_s_lists_have_no_effect(opened: Any) -> None:
    session, script = opened()
    prompt, params, drafts = [1, 2], {"token_ids": [1]}, [3]
    handle = session.add(Request(prompt, processors=[("disallowed_tokens", params)]))
    first = common_pb2.Request.FromString(script.frames[-1].add.requests[0].request.SerializeToString())
    differs_once(script, 0)
    pending = session.step({handle: []}, drafts={handle: drafts})
    prompt.append(9)
    params["token_ids"].append(9)
    drafts.append(9)
    pending.apply(zeros(2))
    assert kinds(script)[-3:] == ["step", "add", "step"]
    assert script.frames[-2].add.requests[0].request == first
    assert script.frames[-1].step.draft_token_ids == script.frames[-3].step.draft_token_ids == int32(3)


def test_a_step_that_cannot_be_sent_leaves_histories_and_frame_numbers_unchanged(opened: Any) -> None:
    session, script = opened()
    handle = session.add(Request([1]))
    script.refuse_to_send = LimitExceeded("too large")
    with pytest.raises(LimitExceeded):
        session.step({handle: [2]})
    script.refuse_to_send = None
    assert handle.history.token_ids.tolist() == [1]
    session.step({handle: [2]}).apply(zeros())
    assert [frame.seq for frame in script.frames] == [1, 2, 3]
    assert handle.history.token_ids.tolist() == [1, 2]


# Handles


def test_handles_that_are_not_in_this_session(opened: Any) -> None:
    session, _ = opened()
    other, _ = opened()
    here, there, gone = session.add(Request()), other.add(Request()), session.add(Request())
    session.remove(gone)
    for wrong in (there, gone, None, "handle", 0):
        for call in (
            session.remove,
            lambda handle: session.step({handle: []}),
            lambda handle: session.rewind(handle, 0),
        ):
            with pytest.raises(NotFound, match=r"is not in this session: |is not a handle: "):
                call(wrong)  # type: ignore[operator]
    session.step({here: []}).apply(zeros())


def test_after_close(opened: Any) -> None:
    session, _ = opened()
    handle = session.add(Request([1]))
    pending = session.step({handle: []})
    session.close()
    session.close()
    calls: list[Callable[[], Any]] = [
        lambda: session.add(Request()),
        lambda: session.remove(handle),
        lambda: session.step({handle: []}),
        lambda: session.step({}),
        lambda: session.rewind(handle, 1),
        lambda: pending.apply(zeros()),
    ]
    for call in calls:
        with pytest.raises(SessionClosed):
            call()


# Steps


def test_a_step_is_applied_once_and_not_after_another_is_begun(opened: Any) -> None:
    session, _ = opened()
    handle = session.add(Request())
    first = session.step({handle: []})
    second = session.step({handle: []})
    with pytest.raises(InvalidArgument, match="another step was begun"):
        first.apply(zeros())
    second.apply(zeros())
    with pytest.raises(InvalidArgument, match="applied already"):
        second.apply(zeros())


@pytest.mark.parametrize(
    "logits",
    [
        zeros(2),
        np.zeros((1, VOCAB + 1), np.float32),
        np.zeros((1, VOCAB), np.float16),
        np.zeros(VOCAB),
        [[0.0] * VOCAB],
    ],
)
def test_logits_that_do_not_fit(opened: Any, logits: Any) -> None:
    session, _ = opened()
    pending = session.step({session.add(Request()): []})
    with pytest.raises(InvalidArgument):
        pending.apply(logits)
    pending.apply(zeros())


def test_failures_are_reported_by_handle(opened: Any) -> None:
    session, script = opened()
    first, second = session.add(Request()), session.add(Request())
    script.answer = lambda frame: edits_reply(
        failures=[failure(1, StateLost("a")), failure(0, InvalidArgument("b"), skipped=True)],
        applied=[common_pb2.RowsApplied(processor="x", rows=2)],
        all_denied_rows=int32(1),
    )
    result = session.step({first: [], second: []}).apply(zeros(2), check=False)
    assert {handle: str(error) for handle, error in result.failures.items()} == {second: "a"}
    assert {handle: str(error) for handle, error in result.skipped.items()} == {first: "b"}
    assert (result.rows_applied, result.all_denied_rows) == ({"x": 2}, (1,))
    with pytest.raises(RequestsFailed) as raised:
        session.step({first: [], second: []}).apply(zeros(2))
    assert list(raised.value.failures) == [second]


# Histories that differ


def test_histories_that_differ_are_sent_again(opened: Any) -> None:
    session, script = opened()
    handles = [session.add(Request([1])) for _ in range(3)]
    differs_once(script, 0, 1)
    result = session.step({handle: [2, 3] for handle in handles}).apply(zeros(3))
    assert result.failures == {}
    assert kinds(script)[4:] == ["step", "add", "step"]
    again, step = script.frames[-2].add, script.frames[-1].step
    sent = [(entry.slot, entry.request.output_ids) for entry in again.requests]
    assert sent == [(0, int32(2, 3)), (1, int32(2, 3))]
    assert step.base_lengths == int32(3, 3, 3)
    assert step.new_token_ids == b""


FORWARD_PASS = 0.005


class LeftReplies(Script):
    """A transport that counts the replies that are left to its thread. The thread may receive them before the engine.

    Attributes:
        left: number of replies.
        take_early: receives a reply, as the transport's thread does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.take_early: Any = None

    def leave_reply(self, *_: Any) -> None:
        self.left += 1

    def on_readable(self, take_early: Any) -> None:
        self.take_early = take_early


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(frame_channel, "_clock", clock)
    return clock


def test_overlapped_steps_are_left_to_the_thread_again(opened: Any, clock: Clock) -> None:
    session, script = opened(LeftReplies())
    handle = session.add(Request())
    session.step({handle: [1]}).apply(zeros())
    for _ in range(5):
        pending = session.step({handle: [1]})
        clock.now += FORWARD_PASS
        if script.left > 1:
            assert script.take_early()
            assert pending.result is not None
        pending.apply(zeros())
    assert script.left == 5, "all but the first overlapped one, and the one before"


def test_a_step_that_was_superseded(opened: Any, clock: Clock) -> None:
    session, script = opened(LeftReplies())
    handle = session.add(Request())
    session.step({handle: [1]})
    clock.now += FORWARD_PASS
    session.step({handle: [2]}).apply(zeros())
    assert script.left == 2
    assert not script.take_early(), "no reply is left"
