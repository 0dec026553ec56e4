"""The search for the smallest example that breaks a law."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Flaky, NoSuchExample

import logitport_lint
from logitport_testing.laws.captured_output import CapturedOutput
from logitport_testing.laws.outcomes import difference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hypothesis.strategies import SearchStrategy

    from logitport_testing.laws.examples import Examples
    from logitport_testing.laws.outcomes import Outcome
    from logitport_testing.laws.playing import Subject
    from logitport_testing.runner import ChainRunner

T = TypeVar("T")

_PHASES = (Phase.generate, Phase.target, Phase.shrink)


class Broken(NamedTuple):
    """An example that breaks a law.

    Attributes:
        problem: description of the violation.
        example: the example as JSON data; empty if the law needs none.
        output: what the processor printed then.
    """

    problem: str
    example: Mapping[str, Any]
    output: str = ""


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


@dataclass(frozen=True)
class Trial:
    """Arguments of the tests of laws.

    Attributes:
        subject: the processor.
        examples: strategies for examples.
        vocab_size: width of the logits.
        here: runs processors in this process.
        open_runner: opens a runner with processors that run elsewhere.
        max_examples: number of examples of each law.
        seed: of the examples.
        tolerance: how far two logits may differ.
        output: captures what the processor prints.
        budget: the time of the search for one law.
    """

    subject: Subject
    examples: Examples
    vocab_size: int
    here: ChainRunner
    open_runner: Callable[[Any], ChainRunner]
    max_examples: int
    seed: int
    tolerance: float
    output: CapturedOutput = field(default_factory=CapturedOutput)
    budget: Budget = field(default_factory=Budget)

    def search(
        self, strategy: SearchStrategy[Any], problem_of: Callable[[Any], str], max_examples: int = 0
    ) -> Broken | None:
        """Search for the smallest example with a problem; the arguments are as in `search_described`."""
        return self.search_described(strategy, lambda example: (problem_of(example), example.describe()), max_examples)

    def search_described(
        self,
        strategy: SearchStrategy[T],
        problem_of: Callable[[T], tuple[str, Mapping[str, Any]]],
        max_examples: int = 0,
    ) -> Broken | None:
        """Search for an example with a problem, and make it small. The same seed gives the same examples.

        Args:
            strategy: draws examples.
            problem_of: describes the problem of an example, or "", and the example.
            max_examples: number of examples to try before the search ends without a result; 0 for the default.
        """
        found: list[Broken] = []

        def has_problem(example: T) -> bool:
            if not self.budget.try_one():
                return False
            self.output.clear()
            problem, described = problem_of(example)
            if problem:
                found.append(Broken(problem, described, self.output.text))
            return bool(problem)

        chosen = settings(
            max_examples=max_examples or self.max_examples,
            deadline=None,
            database=None,
            phases=_PHASES,
            suppress_health_check=list(HealthCheck),
        )
        try:
            find(strategy, has_problem, settings=chosen, random=Random(self.seed))  # noqa: S311 - no secret
        except NoSuchExample:
            return found[-1] if found else None
        except Flaky:
            last = found[-1]
            if self.budget.is_over:
                return last
            note = "not at every run: the result of the processor changes between equal runs"
            return last._replace(problem=f"{last.problem} ({note})")
        return found[-1]

    def suspects(self, kinds: Collection[str]) -> str:
        """Lines of the processor that may be the cause, each on a line; "" if none is found."""
        return "".join(f"\n    suspect: {one}" for one in logitport_lint.find(self.subject.processor, kinds))

    def difference(self, first: Outcome, second: Outcome, names: tuple[str, str]) -> str:
        """Describe the difference of two outcomes, or ""."""
        return difference(first, second, names, self.tolerance)
