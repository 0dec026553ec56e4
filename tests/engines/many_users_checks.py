"""Conditions to hold when twenty users share an engine, some of them hostile: `many_users` produces the reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.engines.hostile_processors import FOUND, NOT_FOUND
from tests.engines.many_users import FAILING, INNOCENT, LEAVING, PROCESSOR_SECONDS, PULSE, SEARCHING, USERS

if TYPE_CHECKING:
    from tests.engines.crowd import Answer, User
    from tests.engines.many_users import Report

# Only a bound: the duration of a step depends on the machine.
_MARGIN_SECONDS = 60.0
_ERRORS = {
    "sleeps in its check": "ProcessorFailed",
    "hangs in its call": "ProcessorFailed",
    "raises": "ProcessorFailed",
}


def innocent_outputs_are_as_alone(report: Report) -> None:
    """Also with n=2, as a stream, and if the service is restarted in the midst of them."""
    assert len(USERS) == 20
    assert len(report.interrupted) >= 2, report.interrupted
    for user in INNOCENT:
        alone = report.alone[user.name]
        assert [len(alone.rows[sample]) for sample in range(user.samples)] == [user.length] * user.samples, user.name
        for answers in (report.alone, report.together, report.restarted):
            answer = answers[user.name]
            if answers is report.restarted and _lost_state(user, answer):
                continue
            assert answer.succeeded, (user.name, answer.status, answer.error)
            assert answer.rows == alone.rows, user.name
            assert set(answer.finished.values()) == {"length"}, (user.name, answer.finished)
    assert len({tuple(answer.rows[0]) for answer in report.together.values() if 0 in answer.rows}) > len(INNOCENT)


def users_that_leave_got_the_same_until_then(report: Report) -> None:
    """Those of the restarted service, too."""
    for user in LEAVING:
        for answers in (report.together, report.restarted):
            if answers is report.restarted and _lost_state(user, answers[user.name]):
                continue
            row, alone = answers[user.name].rows[0], report.alone[user.name].rows[0]
            both = min(len(row), len(alone))
            assert both >= 1
            assert row[:both] == alone[:both], user.name
            assert not answers[user.name].finished


def no_prompt_is_readable(report: Report) -> None:
    """The same processors find the secret in a prompt of their own."""
    for user in SEARCHING:
        assert set(report.own_secret[user.name].rows[0]) == {FOUND}, report.own_secret[user.name]
        assert report.together[user.name].rows == {0: [NOT_FOUND] * user.length}, user.name
        # A request that is refused during the restart has no output.
        restarted = report.restarted[user.name]
        assert set(restarted.rows.get(0, [])) <= {NOT_FOUND}, user.name


def failures_are_visible(report: Report) -> None:
    """Each has an error with its cause, and no output that looks complete."""
    for user in FAILING:
        together, restarted = report.together[user.name], report.restarted[user.name]
        assert _ERRORS[user.name] in together.error, (user.name, together.error)
        failed = report.admission_status if user.name == "sleeps in its check" else 500
        assert together.status == (200 if user.streams else failed), (user.name, together.status)
        # It may have been sent to the service while it was away.
        assert re.search(f"{_ERRORS[user.name]}|ServerUnavailable", restarted.error), (user.name, restarted.error)
        for answer in (together, restarted):
            assert not answer.succeeded
            assert not set(answer.finished.values()) & {"length", "stop"}, (user.name, answer.finished)


def users_without_a_chain_go_on(report: Report) -> None:
    """Their requests succeed, some of them in each phase, and no stream pauses for much longer than a step may."""
    for answer in report.pulses:
        assert answer.succeeded, answer.error
        assert answer.rows == report.alone[PULSE.name].rows
    assert len(_within(report, "together")) >= 3
    assert len(_within(report, "after the restart")) >= 1
    bound = PROCESSOR_SECONDS + _MARGIN_SECONDS
    assert report.together["plain, stream"].longest_gap < bound
    assert report.restarted["plain, stream"].longest_gap < report.outage_seconds + bound


CHECKS = (
    innocent_outputs_are_as_alone,
    users_that_leave_got_the_same_until_then,
    no_prompt_is_readable,
    failures_are_visible,
    users_without_a_chain_go_on,
)


def _lost_state(user: User, answer: Answer) -> bool:
    """Whether it ended with StateLost: the client cannot know whether a processor that has read logits kept state."""
    if not user.reads_logits or "StateLost" not in answer.error:
        return False
    assert answer.status == (200 if user.streams else 503)
    assert set(answer.finished.values()) <= {"abort"}
    return True


def _within(report: Report, phase: str) -> list[Answer]:
    began, ended = report.phases[phase]
    return [answer for answer in report.pulses if began < answer.began and answer.ended < ended]
