"""The time that a step may wait for shipped code."""

from __future__ import annotations

from logitport_session.steps.step_time import StepTime


def test_calls_share_one_deadline() -> None:
    time = StepTime(2.0)
    assert time.for_calls() == 2.0
    time.spend(1.5)
    assert time.for_calls() == 0.5
    assert not time.is_up


def test_calls_after_the_deadline_get_a_bounded_grace_period() -> None:
    time, granted = StepTime(2.0), 0.0
    time.spend(2.0)
    assert time.is_up
    while not time.is_exhausted:
        seconds = time.for_calls()
        assert seconds >= 0.05
        granted += seconds
        time.spend(seconds)
    assert 0.3 < granted < 0.4
