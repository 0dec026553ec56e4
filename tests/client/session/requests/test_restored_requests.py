"""Requests that are restored after a lost connection: a slow one does not delay the others."""

from __future__ import annotations

import pytest

from logitport import (
    InvalidArgument,
    LogitportError,
    ProcessorFailed,
    Request,
)
from tests.client.scripted import VOCAB, Reconnecting, Restoring, edits_reply, failure, int32, kinds, zeros

SLOW = Request([1], processors=[("team/slow", {})])
FAST = Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})])
SKIPPING = Request([1], processors=[("team/slow", {})], on_error="skip")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Reconnecting:
    """A session with two servers; a reconnect does not wait for slow requests."""
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 0.0)
    made = Reconnecting()
    made.servers[1] = Restoring(made.scripts[1])
    return made


def test_only_the_slow_request_fails(two: Reconnecting) -> None:
    fast, slow = two.session.add(FAST), two.session.add(SLOW)
    two.end(0)
    result = two.session.step({fast: [2], slow: [2]}).apply(zeros(2), check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {slow: ProcessorFailed}
    assert "add the request again" in str(result.failures[slow])
    first, *_ = (frame.add for frame in two.scripts[1].frames if frame.HasField("add"))
    assert first.in_background
    assert [one.slot for one in first.requests] == [0, 1]
    assert two.scripts[1].frames[-2].remove.slots == int32(1), "the server does not go on with its admission"
    two.servers[1].end(1, 1)
    result = two.session.step({fast: [3], slow: [3]}).apply(zeros(2), check=False)
    assert list(result.failures) == [slow]
    two.session.remove(slow)
    assert two.session.step({fast: [4]}).apply(zeros()).failures == {}


def test_a_request_that_is_admitted_in_time_loses_no_token(two: Reconnecting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 60.0)
    fast, slow = two.session.add(FAST), two.session.add(SLOW)
    two.session.step({fast: [2], slow: [2]})
    two.end(0)
    two.servers[1].on_collect = lambda: two.servers[1].end(1, 1, reads_logits=True, chain={"processors": ["ab" * 32]})
    result = two.session.step({fast: [3], slow: [3]}).apply(zeros(2))
    assert result.failures == {}
    added = next(frame.add for frame in two.scripts[1].frames if frame.HasField("add"))
    assert [one.request.output_ids for one in added.requests] == [int32(2, 3)] * 2
    assert (slow.reads_logits, slow.processors) == (True, ("ab" * 32,))
    two.session.step({fast: [0], slow: [0]})
    step = two.scripts[1].frames[-1].step
    assert (step.base_lengths, step.new_token_ids) == (int32(3, 3), int32(0, 0))


def test_a_request_without_a_step_is_restored_later(two: Reconnecting) -> None:
    fast, preempted = two.session.add(FAST), two.session.add(SLOW)
    two.end(0)
    two.session.step({fast: [2]}).apply(zeros())
    assert "remove" not in kinds(two.scripts[1])
    two.servers[1].end(1, 1)
    assert two.session.poll() == [], "no request of begin_add"
    assert two.session.step({fast: [3], preempted: []}).apply(zeros(2)).failures == {}


def test_a_request_that_skips_errors_goes_on_and_is_restored(two: Reconnecting) -> None:
    fast, skipping = two.session.add(FAST), two.session.add(SKIPPING)
    two.end(0)
    result = two.session.step({fast: [2], skipping: [2]}).apply(zeros(2))
    assert {handle: type(error) for handle, error in result.skipped.items()} == {skipping: ProcessorFailed}
    assert "remove" not in kinds(two.scripts[1])
    two.session.step({fast: [3], skipping: [3]}).apply(zeros(2))
    two.servers[1].end(1, 1)
    two.session.poll()
    # The server's history ends before the ids of the steps meanwhile.
    differs = [
        edits_reply(failures=[failure(1, LogitportError("differs", code=LogitportError.NEED_SYNC))]),
        edits_reply(),
    ]
    answer = two.scripts[1].answer
    two.scripts[1].answer = lambda frame: differs.pop(0) if frame.HasField("step") else answer(frame)
    result = two.session.step({fast: [0], skipping: [0]}).apply(zeros(2))
    assert result.skipped == {}
    (again,) = two.scripts[1].frames[-2].add.requests
    assert again.request.output_ids == int32(2, 3, 0)


def test_without_a_ready_request_a_reconnect_waits(two: Reconnecting) -> None:
    slow = two.session.add(SLOW)
    two.end(0)
    left = [0] * 3

    def collect() -> None:
        if left:
            left.pop()
        else:
            two.servers[1].end(0, 0)

    two.servers[1].on_collect = collect
    assert two.session.step({slow: [2]}).apply(zeros()).failures == {}


def test_a_reconnect_waits_while_one_admission_ends_after_another(
    two: Reconnecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 0.25)
    monkeypatch.setattr("logitport.session.requests.admissions.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "logitport.session.requests.admissions.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    handles = [two.session.add(request) for request in (FAST, SLOW, SLOW)]
    two.end(0)

    def collect() -> None:
        if now[0] > 0.2 and two.servers[1].missing == {1, 2}:
            two.servers[1].end(1, 1)
        if now[0] > 2.0:
            two.servers[1].end(2, 2)

    two.servers[1].on_collect = collect
    result = two.session.step(dict.fromkeys(handles, ())).apply(zeros(3), check=False)
    assert list(result.failures) == handles[2:]
    assert 0.4 < now[0] < 0.6


def test_a_second_loss_while_requests_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 60.0)
    three = Reconnecting(3, reconnect_seconds=20.0)
    for number in (1, 2):
        three.servers[number] = Restoring(three.scripts[number])
    fast, slow = three.session.add(FAST), three.session.add(SLOW)
    three.end(0)

    three.servers[1].on_collect = lambda: three.end(1)
    three.servers[2].on_collect = lambda: three.servers[2].end(1, 1)
    result = three.session.step({fast: [2], slow: [2]}).apply(zeros(2))
    assert result.failures == {}


def test_a_request_with_a_wrong_id_is_restored_no_longer(two: Reconnecting) -> None:
    fast, skipping = two.session.add(FAST), two.session.add(SKIPPING)
    two.end(0)
    two.session.step({fast: [2], skipping: [2]}).apply(zeros(2))
    two.session.step({fast: [3], skipping: [VOCAB]}).apply(zeros(2), check=False)
    sent = len(two.scripts[1].frames)
    result = two.session.step({fast: [0], skipping: [3]}).apply(zeros(2), check=False)
    assert isinstance({**result.failures, **result.skipped}[skipping], InvalidArgument)
    sent_now = [frame.WhichOneof("frame") for frame in two.scripts[1].frames[sent:]]
    assert sent_now == ["step"], "results of admissions are still collected"
