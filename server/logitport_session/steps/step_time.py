"""The time that a step may wait for shipped code, and the deadlines that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport_session.trust.isolation import STACK_SECONDS

if TYPE_CHECKING:
    from logitport_session.resources.session_limits import SessionLimits

# Seconds for calls after the deadline, in total. Without them, a processor that uses up the deadline would fail the
# requests with processors that come after it.
_GRACE_SECONDS = 0.4
# A shorter time would end workers that are only a little slow.
_MIN_GRACE_SECONDS = 0.05


def longest_wait(seconds: float) -> float:
    """Return how long a step with this deadline may wait for shipped code, in seconds, with its grace period.

    At the deadline, and after each of up to three calls in the grace period, it may wait for the stacks of workers.
    """
    return seconds + _GRACE_SECONDS + 4 * STACK_SECONDS


class StepTime:
    """One deadline for all calls of shipped code in a step, and a short grace period for calls that begin after it.

    Only waiting counts: what the server itself computes while workers run does not. Each call after the deadline gets
    half of the grace period that is left, so that their sum is bounded.

    Args:
        seconds: how long the step may wait, in all its parts together.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._grace = _GRACE_SECONDS

    @property
    def is_up(self) -> bool:
        """Whether the deadline has passed."""
        return self._left <= 0

    def for_calls(self) -> float:
        """Return how many seconds the next calls may take together; 0 if the grace period has been used up, too."""
        if self._left > 0:
            return self._left
        if self._grace / 2 < _MIN_GRACE_SECONDS:
            return 0.0
        self._grace /= 2
        return self._grace

    def spend(self, seconds: float) -> None:
        """Subtract a time that the step has waited."""
        self._left -= seconds


class ReplyDeadlines(NamedTuple):
    """Longest times that processors may take, in seconds; 0 if there is no limit.

    Attributes:
        step: for the calls of one step, in all its frames together.
        add: for admitting one request.
    """

    step: float
    add: float

    @classmethod
    def of(cls, limits: SessionLimits, *, only_builtins: bool) -> ReplyDeadlines:
        """Return the deadlines of a session with these limits."""
        if limits.runs_shipped_code or not only_builtins:
            return cls(0.0, 0.0)  # such code runs in this process, where nothing limits its time
        return cls(longest_wait(limits.processor_timeout_seconds), limits.load_timeout_seconds)
