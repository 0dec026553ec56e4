"""The laws of processors, one function each: it searches for an example that breaks the law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import payload
from logitport.errors import InvalidArgument, LimitExceeded, LoadFailed
from logitport.programs.program import Program
from logitport.request import ProcessorRef
from logitport.testing.examples import changes_of
from logitport.testing.outcomes import difference
from logitport.testing.playing import play, play_crowd, play_rewind
from logitport.testing.search import smallest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hypothesis.strategies import SearchStrategy

    from logitport.testing.examples import Crowd, Examples, Rewind, Run
    from logitport.testing.outcomes import Outcome
    from logitport.testing.playing import Subject
    from logitport.testing.runner import Runner

# The admission refuses the request, and nothing else happens.
_REFUSALS = (InvalidArgument, LimitExceeded, LoadFailed)
# Widths of logits besides the usual one: an engine pads them, and masks have 32 ids in a word.
_PADDING = (0, 1, 31)
# With the last, differences and exponentials of the logits leave the usual range.
_SCALES = (1.0, 0.0, 1e4)
# Each example of parameters runs once for each change of them.
_MIN_RUNS_FOR_PARAMS, _CHANGES_FOR_AN_EXAMPLE = 5, 8
# Each example of a worker takes several messages to another process.
_MAX_WORKER_EXAMPLES = 10


class Broken(NamedTuple):
    """An example that breaks a law.

    Attributes:
        problem: description of the violation.
        example: the example as JSON data; empty if the law needs none.
    """

    problem: str
    example: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """Arguments of the tests of laws.

    Attributes:
        subject: the processor.
        examples: strategies for examples.
        vocab_size: width of the logits.
        here: runs processors in this process.
        open_runner: opens a runner at another place.
        max_examples: number of examples of each law.
        seed: of the examples.
        tolerance: how far two logits may differ.
    """

    subject: Subject
    examples: Examples
    vocab_size: int
    here: Runner
    open_runner: Callable[[Any], Runner]
    max_examples: int
    seed: int
    tolerance: float

    def search(
        self, strategy: SearchStrategy[Any], problem_of: Callable[[Any], str], max_examples: int = 0
    ) -> Broken | None:
        """Search for the smallest example with a problem."""
        found = smallest(strategy, problem_of, max_examples=max_examples or self.max_examples, seed=self.seed)
        return None if found is None else Broken(found[1], found[0].describe())

    def difference(self, first: Outcome, second: Outcome, names: tuple[str, str]) -> str:
        """Describe the difference of two outcomes; "" if there is none."""
        return difference(first, second, names, self.tolerance)


def start_equals_advance(trial: Trial) -> Broken | None:
    """`start` with a history gives what `advance` gives after any prefix of it, and a step changes nothing."""

    def problem(run: Run) -> str:
        advanced = play(trial.subject, trial.here, run)[-1]
        if advanced.state_lost:
            return ""  # the processor's state does not follow from the history, and the server reports that
        history = replace(run, output=run.output[: advanced.output_length])  # it is shorter after an error
        fresh = play(trial.subject, trial.here, history.fresh())[0]
        return trial.difference(advanced, fresh, ("after `advance`", "after `start`"))

    return trial.search(trial.examples.runs(), problem)


def rewind_equals_start(trial: Trial) -> Broken | None:
    """After `rewind`, a request is as if it had started with the shorter history."""

    def problem(rewind: Rewind) -> str:
        rewound = play_rewind(trial.subject, trial.here, rewind)
        if rewound is None or rewound.state_lost:
            return ""  # as above
        fresh = play(trial.subject, trial.here, rewind.fresh())[0]
        return trial.difference(rewound, fresh, ("after `rewind`", "after `start`"))

    return trial.search(trial.examples.rewinds(), problem)


def rows_are_independent(trial: Trial) -> Broken | None:
    """A row does not depend on the other rows of its batch."""

    def problem(crowd: Crowd) -> str:
        alone = [play(trial.subject, trial.here, member) for member in crowd.members]
        if any(outcome.error is not None and not outcome.state_lost for one in alone for outcome in one):
            return ""  # another law's concern: the call of one request fails for all that share it
        together = play_crowd(trial.subject, trial.here, crowd)
        for number, (own, shared) in enumerate(zip(alone, together, strict=True)):
            for step, (first, second) in enumerate(zip(own, shared, strict=False)):
                found = trial.difference(first, second, ("alone", "in the batch"))
                if found:
                    return f"request {number}, step {step} of its own: {found}"
        return ""

    return trial.search(trial.examples.crowds(), problem)


def params_are_checked(trial: Trial) -> Broken | None:
    """`validate_params` refuses what `start`, `advance` and `edit` cannot use, with InvalidParams or a ValueError."""

    def first_failure(run: Run) -> tuple[str, Run, str] | None:
        """The first change of the run's parameters that fails, the run with it, and its problem."""
        original = play(trial.subject, trial.here, run)[-1]
        if original.error is not None and not original.state_lost:
            # NaN and ids outside the vocabulary have laws of their own.
            return None if original.is_nan or original.is_outside else ("none", run, _failure(original))
        for change, params in changes_of(run.params):
            changed = replace(run, params=params)
            last = play(trial.subject, trial.here, changed)[-1]
            refused = not last.admitted and isinstance(last.error, _REFUSALS)
            if last.error is not None and not refused and not last.state_lost:
                return change, changed, _failure(last)
        return None

    def problem(run: Run) -> str:
        failure = first_failure(run)
        return "" if failure is None else failure[2]

    num_changes = max(len(changes_of(params)) for params in trial.examples.params)
    max_examples = max(_MIN_RUNS_FOR_PARAMS, trial.max_examples * _CHANGES_FOR_AN_EXAMPLE // num_changes)
    found = smallest(
        trial.examples.runs(), problem, max_examples=min(max_examples, trial.max_examples), seed=trial.seed
    )
    failure = None if found is None else first_failure(found[0])
    if found is None or failure is None:
        return None if found is None else Broken(found[1], found[0].describe())
    change, run, text = failure
    return Broken(text, {"change": change, **run.describe()})


def _failure(outcome: Outcome) -> str:
    return f"accepted, and then {outcome}" if outcome.admitted else f"not refused, but {outcome}"


def ids_are_in_the_vocabulary(trial: Trial) -> Broken | None:
    """Edits name ids of the vocabulary, and logits keep their shape, at all widths of the logits."""

    def problem(run: Run) -> str:
        return next((f"{one}" for one in play(trial.subject, trial.here, run) if one.is_outside), "")

    widths = [trial.vocab_size + padding for padding in _PADDING]
    return trial.search(trial.examples.runs(widths), problem)


def logits_are_numbers(trial: Trial) -> Broken | None:
    """No logit becomes NaN, also where other processors have set logits to -inf."""

    def problem(run: Run) -> str:
        return next((f"{one}" for one in play(trial.subject, trial.here, run) if one.is_nan), "")

    return trial.search(trial.examples.runs(scales=_SCALES), problem)


def pickles_and_loads(trial: Trial) -> Broken | None:
    """The processor can be pickled, and gives the same results after loading."""
    if not _is_shipped(trial.subject.processor):
        return None
    with trial.open_runner("shipped") as shipped:
        return _compare_with(trial, shipped, "after loading", trial.max_examples)


def workers_agree(trial: Trial) -> Broken | None:
    """A sandboxed worker, without files and network, gives the same results."""
    if not _is_shipped(trial.subject.processor):
        return None
    return _compare_with(
        trial, trial.open_runner("worker"), "in a worker", min(trial.max_examples, _MAX_WORKER_EXAMPLES)
    )


def _compare_with(trial: Trial, runner: Runner, place: str, max_examples: int) -> Broken | None:
    def problem(run: Run) -> str:
        here, there = play(trial.subject, trial.here, run), play(trial.subject, runner, run)
        for first, second in zip(here, there, strict=False):
            if found := trial.difference(first, second, ("here", place)):
                return found
        return ""

    return trial.search(trial.examples.runs(), problem, max_examples)


def _is_shipped(processor: Any) -> bool:
    """Whether clients send the processor's code."""
    if isinstance(processor, str):
        return processor.lstrip().startswith("{") and not payload.holds_program(processor)
    if isinstance(processor, ProcessorRef | Program):
        return False
    return not vars(processor if isinstance(processor, type) else type(processor)).get("builtin_name")


class Law(NamedTuple):
    """A law.

    Attributes:
        name: its name, for `LawBroken.law` and for `check(laws=…)`.
        search: searches for an example that breaks it. The docstring states the law.
    """

    name: str
    search: Callable[[Trial], Broken | None]

    @property
    def statement(self) -> str:
        """The law in a sentence."""
        return (self.search.__doc__ or "").strip()


# In the order in which they are tested.
LAWS = (
    Law("start", start_equals_advance),
    Law("rewind", rewind_equals_start),
    Law("batch", rows_are_independent),
    Law("params", params_are_checked),
    Law("vocabulary", ids_are_in_the_vocabulary),
    Law("nan", logits_are_numbers),
    Law("pickle", pickles_and_loads),
    Law("worker", workers_agree),
)
