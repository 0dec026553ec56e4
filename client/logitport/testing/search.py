"""The search for the smallest example that breaks a law."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Flaky, NoSuchExample

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

_PHASES = (Phase.generate, Phase.target, Phase.shrink)


def smallest(
    strategy: SearchStrategy[T], problem_of: Callable[[T], str], *, max_examples: int, seed: int
) -> tuple[T, str] | None:
    """Search for an example with a problem, and make it small.

    Args:
        strategy: draws examples.
        problem_of: describes the problem of an example; "" if it has none.
        max_examples: number of examples to try before the search ends without a result.
        seed: of the draws; the same seed gives the same examples.

    Returns:
        The example and its problem; None if none was found.
    """
    found: list[tuple[T, str]] = []

    def has_problem(example: T) -> bool:
        problem = problem_of(example)
        if problem:
            found.append((example, problem))
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
        return None
    except Flaky:
        example, problem = found[-1]
        return example, f"{problem} (not at every run: the result of the processor changes between equal runs)"
    return found[-1]
