"""Tests whether a processor obeys the laws that a server relies on."""

from __future__ import annotations

import atexit
import json
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logitport import dialects
from logitport.core.history import listed_ids
from logitport.errors import InvalidArgument, LogitportError, NotInstalled, ProcessorFailed, ProcessorWarning
from logitport.system.installation import how_to_install
from logitport.tokenizers import operator_tokenizer
from logitport_lint import DISCARD, find
from logitport_testing.laws.captured_output import CapturedOutput
from logitport_testing.laws.stopwatch import TimeLimits
from logitport_testing.runner import load_backend, with_tokenizer

try:
    from logitport_testing.laws.examples import Examples, Logits, Run, integers_in
except ImportError as error:
    raise NotInstalled(f"check needs hypothesis ({error}); install it {how_to_install('server', 'testing')}") from error

from logitport_testing.laws import processor_laws as of_processors
from logitport_testing.laws.playing import Subject, play
from logitport_testing.laws.search import Budget, Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike

    from logitport.core.history import TokenIds
    from logitport.shipping.request import ProcessorLike
    from logitport_testing.laws.processor_laws import Law
    from logitport_testing.laws.search import Broken
    from logitport_testing.runner import ChainRunner, Where

LAWS = tuple(law.name for law in of_processors.LAWS)

_MIN_VOCAB_SIZE = 64
# A larger number in the parameters is not taken for an id.
_MAX_ID = 1 << 18
# The time of all searches. Each law has an equal part of what is left, so that laws after a slow one are tested, too.
_MAX_SECONDS = 180.0
# The server's defaults of --processor-timeout-seconds and --load-timeout-seconds.
_STEP_SECONDS, _LOAD_SECONDS = 2.0, 10.0


def check(
    processor: ProcessorLike,
    params: Sequence[Mapping[str, Any]] = ({},),
    *,
    vocab_size: int | None = None,
    laws: Iterable[str] = LAWS,
    max_examples: int = 50,
    seed: int = 0,
    tolerance: float = 1e-4,
    tokenizer: str | PathLike[str] | None = None,
    tokenizer_id: str = "",
    eos_token_ids: TokenIds = (),
    sampling_params: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Search for examples that break a law; the same arguments try the same examples.

    Each example runs with new instances of the processor, through the server's own code. What the processor prints is
    captured; the error has the end of it. The searches end after three minutes in all, with a warning.

    Args:
        processor: a class, an instance, a function, a built-in's name, a program or a serialized string: what
            `Request.processors` takes, of any dialect.
        params: parameters that the processor accepts. More of them find more.
        vocab_size: width of the logits; by default more than all ids in `params` and of the tokenizer, and 64 or more.
        laws: names of the laws to test, some of `LAWS`. The law "worker" starts a sandboxed process once. Without the
            law "time", calls may take any time; with it, those in the main thread that never end are stopped.
        max_examples: number of examples of each law.
        seed: of the examples.
        tolerance: how far two logits may differ that should be equal, absolutely and relatively: sums of several rows
            may be rounded in another order.
        tokenizer: a tokenizer.json, or a folder with one: the only tokenizer of the operator.
        tokenizer_id: the engine's name for its tokenizer; by default the tokenizer's path.
        eos_token_ids: the engine's ids that end a sequence.
        sampling_params: the engine's parameters of each request.
        options: options of `logitport serve` by name.

    Raises:
        LawBroken: a law does not hold; the first of `LAWS`. The message has the smallest example.
        ProcessorWarning: as a warning, for each line of the processor that has no effect.
        InvalidArgument: an argument cannot be used, or the processor refuses parameters of `params`.
        ServerUnavailable: this machine cannot run workers; leave out the law "worker".
        NotInstalled: the server, or hypothesis, is not installed.
    """
    chosen = _chosen(laws)
    if tokenizer is not None:
        tokenizer_id, options = with_tokenizer(tokenizer, tokenizer_id, options)
    given = [dict(one) for one in params]
    if not given or max_examples < 1:
        raise InvalidArgument("pass at least one dict of parameters ({} for none), and max_examples of 1 or more")
    subject = Subject(
        processor,
        tokenizer_id,
        tuple(listed_ids(eos_token_ids, "eos_token_ids")),
        dict(sampling_params or {}),
        _limits(options) if any(law.name == "time" for law in chosen) else None,
    )
    for line in find(processor, {DISCARD}):
        warnings.warn(str(line), ProcessorWarning, stacklevel=2)
    backend = load_backend()
    unfinished: list[str] = []
    with ExitStack() as stack:
        output = stack.enter_context(CapturedOutput())
        here = stack.enter_context(backend.open_runner("here", options))
        width = vocab_size or _enough_ids(given, tokenizer_id)
        for number, one in enumerate(given):
            _check_accepted(subject, here, one, f"params[{number}]", width)

        def open_runner(where: Where) -> ChainRunner:
            return _worker_runner(json.dumps(options)) if where == "worker" else backend.open_runner(where, options)

        trial = Trial(subject, Examples(given, width), width, here, open_runner, max_examples, seed, tolerance, output)
        end = time.monotonic() + _MAX_SECONDS
        for number, law in enumerate(chosen):
            budget = Budget((end - time.monotonic()) / (len(chosen) - number))
            broken = law.search(replace(trial, budget=budget))
            if broken is not None:
                raise of_processors.LawBroken(
                    _message(processor, law, broken), law=law.name, example=broken.example, output=broken.output
                )
            if budget.is_over:
                unfinished.append(f"{law.name} ({budget.tried} examples)")
    if unfinished:
        warnings.warn(
            f"the processor is slow, so that the search of these laws ended early: {', '.join(unfinished)}; pass fewer "
            "laws, or a smaller max_examples",
            stacklevel=2,
        )


def _limits(options: Mapping[str, Any] | None) -> TimeLimits:
    given = options or {}
    return TimeLimits(
        float(given.get("processor_timeout_seconds", _STEP_SECONDS)),
        float(given.get("load_timeout_seconds", _LOAD_SECONDS)),
    )


def _enough_ids(params: Sequence[Mapping[str, Any]], tokenizer_id: str) -> int:
    """A width of logits with all ids that the processor is likely to use."""
    of_params = (1 + number for number in integers_in(params) if number < _MAX_ID)
    try:
        of_tokenizer = operator_tokenizer(tokenizer_id).vocab_size
    except LogitportError:  # none is configured, or the package `tokenizers` is not installed
        of_tokenizer = 0
    return max([_MIN_VOCAB_SIZE, of_tokenizer, *of_params])


# By options, in JSON. The next check with the same options uses the runner and its idle workers again.
_worker_runners: dict[str, ChainRunner] = {}


def _worker_runner(options: str) -> ChainRunner:
    if options not in _worker_runners:
        _worker_runners[options] = load_backend().open_runner("worker", json.loads(options))
    return _worker_runners[options]


@atexit.register
def close_workers() -> None:
    """End the workers that earlier checks of this process have started."""
    while _worker_runners:
        _worker_runners.popitem()[1].close()


def _chosen(names: Iterable[str]) -> list[Law]:
    wanted = [names] if isinstance(names, str) else list(names)
    if unknown := sorted({*wanted} - {*LAWS}):
        raise InvalidArgument(f"there is no law {unknown[0]!r}; the laws are {', '.join(LAWS)}")
    return [law for law in of_processors.LAWS if law.name in wanted]


def _check_accepted(subject: Subject, here: ChainRunner, params: Mapping[str, Any], where: str, width: int) -> None:
    """Raise InvalidArgument if the processor refuses the parameters."""
    first = play(subject, here, Run(params, (), (), 0, at_once=False, logits=Logits(width)))[0]
    if first.too_slow:
        return  # the law "time" reports it
    if not first.admitted and isinstance(first.error, InvalidArgument):
        raise InvalidArgument(
            f"{where} is refused at vocab_size={width}: {first.error}; list parameters that the processor accepts, and "
            "pass a vocab_size with all ids that it uses"
        ) from first.error
    if not first.admitted and first.error is not None and not isinstance(first.error, ProcessorFailed):
        raise first.error  # there is no such processor, or it cannot be loaded


def _message(processor: Any, law: Law, broken: Broken) -> str:
    name = processor if isinstance(processor, str) else getattr(dialects.author_of(processor), "__qualname__", "")
    lines = [f"{name[:100]} breaks the law {law.name!r}: {law.statement}"]
    lines += [f"  {key}: {value!r}" for key, value in broken.example.items()]
    lines.append(f"  problem: {broken.problem}")
    return "\n".join(lines)
