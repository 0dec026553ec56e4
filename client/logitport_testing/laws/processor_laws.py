"""The laws of processors, one function each: it searches for an example that breaks the law."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import payload
from logitport.errors import InvalidArgument, LimitExceeded, LogitportError, PayloadError
from logitport.shipping.request import ProcessorRef
from logitport_lint import CHANGES, DRAW, SHARED
from logitport_programs.program import Program
from logitport_testing.laws.examples import LENGTHS, Logits, Run, changes_of
from logitport_testing.laws.playing import play, play_crowd, play_rewind
from logitport_testing.laws.search import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport_testing.laws.examples import Crowd, Rewind
    from logitport_testing.laws.outcomes import Outcome
    from logitport_testing.laws.search import Trial
    from logitport_testing.runner import ChainRunner

# The admission refuses the request, and nothing else happens.
_REFUSALS = (InvalidArgument, LimitExceeded, PayloadError)
# Widths of logits besides the usual one: an engine pads them, and masks have 32 ids in a word.
_PADDING = (0, 1, 31)
# With the last, differences and exponentials of the logits leave the usual range.
_SCALES = (1.0, 0.0, 1e4)
# Each example of parameters runs once for each change of them.
_MIN_RUNS_FOR_PARAMS, _CHANGES_FOR_AN_EXAMPLE = 5, 8
# A call breaks the law "time" if it is too slow at each of so many runs.
_TIMES_TOO_SLOW = 3
# Each example of a worker takes several messages to another process.
_MAX_WORKER_EXAMPLES = 10


class LawBroken(LogitportError, AssertionError):
    """A processor breaks a law of `logitport_testing`. Raised by `logitport_testing.check`.

    Attributes:
        law: name of the law, one of `logitport_testing.LAWS`.
        example: the smallest example that was found, as a dict; empty if the law needs none.
    """

    def __init__(self, message: str, *, law: str, example: Mapping[str, Any], output: str) -> None:
        super().__init__(message, output=output)
        self.law = law
        self.example = dict(example)


def calls_are_fast(trial: Trial) -> Broken | None:
    """Each step, and each start of a request, ends within the server's limits, also after 10,000 ids."""

    def problem(run: Run) -> str:
        slow = [one for one in play(trial.subject, trial.here, run) if one.too_slow]
        return slow[0].too_slow + _traceback_of(slow[0]) if slow else ""

    for length in sorted({*LENGTHS}):
        for params in trial.examples.params:
            run = Run(params, (), (0, 1), 0, at_once=False, logits=Logits(trial.vocab_size))
            run = run.lengthened(length, in_output=True) if length else run
            trial.output.clear()
            found = [problem(run)]
            # The machine may have been busy, or the first call may have read a file.
            while found[-1] and "stopped" not in found[-1] and len(found) < _TIMES_TOO_SLOW:
                found.append(problem(run))
            if found[-1]:
                return Broken(found[-1], run.describe(), trial.output.text)
            if not trial.budget.try_one():
                return None
    return None


def _traceback_of(outcome: Outcome) -> str:
    return f"\n{outcome.error}" if outcome.error is not None else ""


def requests_run(trial: Trial) -> Broken | None:
    """Requests with parameters that are accepted run without an exception, at any length of the history."""

    def problem(run: Run) -> str:
        last = play(trial.subject, trial.here, run)[-1]
        refused = not last.admitted and isinstance(last.error, _REFUSALS)
        return _failure(last) if last.failed and not refused else ""

    return trial.search(trial.examples.runs(lengths=LENGTHS), problem)


def results_are_repeated(trial: Trial) -> Broken | None:
    """The same request gives the same results whenever it runs, with new instances of the processor."""

    def problem(run: Run) -> str:
        first, second = play(trial.subject, trial.here, run), play(trial.subject, trial.here, run)
        found = (trial.difference(*pair, ("at first", "again")) for pair in zip(first, second, strict=False))
        difference = next(filter(None, found), "")
        return difference and difference + trial.suspects({DRAW, *SHARED})

    return trial.search(trial.examples.runs(lengths=LENGTHS), problem)


def start_equals_advance(trial: Trial) -> Broken | None:
    """`start` with a history gives what `advance` gives after any prefix of it, and a step changes nothing."""

    def problem(run: Run) -> str:
        advanced = play(trial.subject, trial.here, run)[-1]
        if advanced.state_lost:
            return ""  # the processor's state does not follow from the history, and the server reports that
        history = replace(run, output=run.output[: advanced.output_length])  # it is shorter after an error
        fresh = play(trial.subject, trial.here, history.fresh())[0]
        found = trial.difference(advanced, fresh, ("after `advance`", "after `start`"))
        return found and found + trial.suspects(CHANGES)

    return trial.search(trial.examples.runs(lengths=LENGTHS), problem)


def rewind_equals_start(trial: Trial) -> Broken | None:
    """After `rewind`, a request is as if it had started with the shorter history."""

    def problem(rewind: Rewind) -> str:
        rewound = play_rewind(trial.subject, trial.here, rewind)
        if rewound is None or rewound.state_lost:
            return ""  # as above
        fresh = play(trial.subject, trial.here, rewind.fresh())[0]
        found = trial.difference(rewound, fresh, ("after `rewind`", "after `start`"))
        return found and found + trial.suspects(CHANGES)

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
                    return f"request {number}, step {step} of its own: {found}{trial.suspects(CHANGES)}"
        return ""

    return trial.search(trial.examples.crowds(), problem)


def params_are_checked(trial: Trial) -> Broken | None:
    """`validate_params` refuses what `start`, `advance` and `edit` cannot use, with InvalidArgument or a ValueError."""

    def first_failure(run: Run) -> tuple[str, Mapping[str, Any]]:
        """The problem of the first change of the run's parameters that fails, and the run with the change."""
        original = play(trial.subject, trial.here, run)[-1]
        if original.error is not None and not original.state_lost:
            return "", {}  # another law's concern, whatever the parameters are
        for change, params in changes_of(run.params):
            changed = replace(run, params=params)
            last = play(trial.subject, trial.here, changed)[-1]
            refused = not last.admitted and isinstance(last.error, _REFUSALS)
            if last.error is not None and not refused and not last.state_lost and not last.too_slow:
                return _failure(last), {"change": change, **changed.describe()}
        return "", {}

    num_changes = max(len(changes_of(params)) for params in trial.examples.params)
    max_examples = max(_MIN_RUNS_FOR_PARAMS, trial.max_examples * _CHANGES_FOR_AN_EXAMPLE // num_changes)
    return trial.search_described(trial.examples.runs(), first_failure, min(max_examples, trial.max_examples))


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


def _compare_with(trial: Trial, runner: ChainRunner, where: str, max_examples: int) -> Broken | None:
    unlimited = replace(trial.subject, limits=None)  # a worker has limits of its own

    def problem(run: Run) -> str:
        here, there = play(trial.subject, trial.here, run), play(unlimited, runner, run)
        for first, second in zip(here, there, strict=False):
            if found := trial.difference(first, second, ("here", where)):
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
    """A law by its name. The docstring of its search for an example that breaks it states the law."""

    name: str
    search: Callable[[Trial], Broken | None]

    @property
    def statement(self) -> str:
        """The law in a sentence."""
        return (self.search.__doc__ or "").strip()


# Tested in this order.
LAWS = (
    Law("time", calls_are_fast),
    Law("runs", requests_run),
    Law("deterministic", results_are_repeated),
    Law("start", start_equals_advance),
    Law("rewind", rewind_equals_start),
    Law("batch", rows_are_independent),
    Law("params", params_are_checked),
    Law("vocabulary", ids_are_in_the_vocabulary),
    Law("nan", logits_are_numbers),
    Law("pickle", pickles_and_loads),
    Law("worker", workers_agree),
)
