"""Replies are left to the transport's thread only while the engine overlaps its steps with other work."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import Request
from logitport.session.connection import frame_channel
from tests.client.conftest import Script
from tests.client.scripted import zeros

FORWARD_PASS, AT_ONCE = 0.005, 0.00001


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
    clock = Clock()
    monkeypatch.setattr(frame_channel, "_clock", clock)
    return clock


def test_steps_that_are_applied_at_once_are_not_left_to_the_thread(opened: Any, clock: Clock) -> None:
    session, script = opened(LeftReplies())
    handle = session.add(Request())
    for _ in range(5):
        pending = session.step({handle: [1]})
        clock.now += AT_ONCE
        pending.apply(zeros())
    assert script.left == 1, "the first one"


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
