"""The rule in a request's parameters: what counts as a cycle, and what is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_builtins.params import Params
from logitport_builtins.thinking_budget.thinking_limit import (
    KEYS_OF_TAGS,
    ThinkingLimit,
    ThinkingTags,
    closing_problem,
    read_tags,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_DISTINCT = 12  # a block with fewer distinct ids is plain
# The order is that of `LoopAction` in core/src/states/loop_breaker.h.
ACTIONS = ("report", "deny_next", "end", "end_thinking")
_MAX_PERIOD = 8192
_LONGEST = 2**31 - 1  # no history is longer
_KEYS = ("action", "repeats", "max_period", "min_length", "plain_repeats")


@dataclass(frozen=True)
class LoopRule:
    """The parameters of a request.

    Attributes:
        repeats: how many equal blocks are a cycle, 2 or more.
        plain_repeats: the same for a block with fewer than 12 distinct ids, if it is more.
        max_period: the number of ids of a block, at most.
        min_length: the number of ids of a cycle, at least.
        action: one of `ACTIONS`.
        tags: of the thinking block, for the action `end_thinking`; else None.

    The defaults are measured: see "Loops" in benchmarks/RESULTS.md.
    """

    repeats: int
    max_period: int
    min_length: int
    plain_repeats: int
    action: str
    tags: ThinkingTags | None

    @property
    def shortest_cycle(self) -> int:
        """The number of ids of a complete cycle, at least."""
        plain = max(self.repeats, self.plain_repeats, self.min_length)  # of one id
        if self.max_period < MIN_DISTINCT:
            return plain
        return min(plain, max(self.repeats * MIN_DISTINCT, self.min_length))


def read_rule(params: Mapping[str, Any]) -> LoopRule:
    """Read the rule from the parameters of `loop_guard`.

    Raises:
        InvalidArgument: a parameter is missing, unknown or invalid.
    """
    given = Params("loop_guard", params, (*_KEYS, *KEYS_OF_TAGS))
    return LoopRule(
        repeats=_integer(given, "repeats", 3, minimum=2),
        max_period=_read_max_period(given),
        min_length=_integer(given, "min_length", 64, minimum=0),
        plain_repeats=_integer(given, "plain_repeats", 96, minimum=0),
        action=_read_action(given),
        tags=_read_tags(given),
    )


def _integer(given: Params, key: str, default: int, minimum: int) -> int:
    return min(given.integer(key, minimum), _LONGEST) if key in given else default


def _read_max_period(given: Params) -> int:
    period = _integer(given, "max_period", 512, minimum=1)
    if period > _MAX_PERIOD:
        raise given.error(f"max_period must be at most {_MAX_PERIOD}, not {period}")
    return period


def _read_action(given: Params) -> str:
    action = given.string("action")
    if action not in ACTIONS:
        raise given.error(f"unknown action {action!r}; known actions: {', '.join(ACTIONS)}")
    return action


def _read_tags(given: Params) -> ThinkingTags | None:
    if given.string("action") != "end_thinking":
        conflicting = [key for key in KEYS_OF_TAGS if key in given]
        if conflicting:
            raise given.error(f"{conflicting[0]} is only for the action end_thinking: leave it out")
        return None
    tags = read_tags(given)
    if problem := closing_problem(ThinkingLimit(0, tags)):
        raise given.error(problem)
    return tags
