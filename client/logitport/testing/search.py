"""The search for the smallest example that breaks a law."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Flaky, NoSuchExample

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from logitport.testing.captured_output import CapturedOutput

T = TypeVar("T")

_PHASES = (Phase.generate, Phase.target, Phase.shrink)


@dataclass(frozen=True)  # a NamedTuple cannot be generic in Python 3.10
class Found(Generic[T]):
    """An example with a problem.

    Attributes:
        example: the example.
        problem: its problem.
        output: what the processor printed then.
    """

    example: T
    problem: str
    output: str


class Budget:
    """The time of a search.

    Args:
        seconds: when they are over, no further example is tried.

    Attributes:
        tried: number of examples that were tried.
        is_over: whether examples were left out.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._end = time.monotonic() + seconds
        self.tried = 0
        self.is_over = False

    def try_one(self) -> bool:
        """Count one more example. Returns False if there is no time for it; the first one is always tried."""
        if self.tried and time.monotonic() > self._end:
            self.is_over = True
            return False
        self.tried += 1
        return True


def smallest(
    strategy: SearchStrategy[T],
    problem_of: Callable[[T], str],
    *,
    max_examples: int,
    seed: int,
    output: CapturedOutput,
    budget: Budget,
) -> Found[T] | None:
    """Search for an example with a problem, and make it small.

    Args:
        strategy: draws examples.
        problem_of: describes the problem of an example; "" if it has none.
        max_examples: number of examples to try before the search ends without a result.
        seed: of the draws; the same seed gives the same examples.
        output: has what the processor prints.
        budget: the time of the search.

    Returns:
        The example; None if none was found.
    """
    found: list[Found[T]] = []

    def has_problem(example: T) -> bool:
        if not budget.try_one():
            return False
        output.clear()
        problem = problem_of(example)
        if problem:
            found.append(Found(example, problem, output.text))
        return bool(problem)

    chosen = settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        phases=_PHASES,
        suppress_health_check=list(HealthCheck),
    )
    try:
        find(strategy, has_problem, settings=chosen, random=Random(seed))  # noqa: S311 - no secret
    except NoSuchExample:
        return found[-1] if found else None
    except Flaky:
        last = found[-1]
        if budget.is_over:
            return last
        note = "not at every run: the result of the processor changes between equal runs"
        return replace(last, problem=f"{last.problem} ({note})")
    return found[-1]
