"""The examples for the tests of laws: requests, their histories, and the logits of their steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from logitport_testing.models.toy_model import ToyModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy
    from numpy.typing import NDArray

_MAX_PROMPT, _MAX_OUTPUT, _MAX_MASKED = 4, 8, 4
_MAX_MEMBERS, _MAX_MEMBER_OUTPUT, _MAX_WAIT = 3, 3, 2
# Most ids are among the first few, so that they repeat.
_COMMON_IDS = 6
_MAX_SEED = 7
# Lengths of repeated ids before the others: most examples have none, and the search ends with none if it can.
LENGTHS = (0, 0, 0, 100, 1_000, 10_000)
# Longer lists are described by what is repeated in them.
_MAX_LISTED, _MAX_PERIOD = 40, 24


@dataclass(frozen=True)
class Logits:
    """The logits of a request: `ToyModel(vocab_size, seed)` after its ids, times `scale`, -inf at `masked`."""

    vocab_size: int
    seed: int = 0
    scale: float = 1.0
    masked: tuple[int, ...] = ()

    def after(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits after these ids, float32[vocab_size]."""
        row = ToyModel(self.vocab_size, self.seed)(token_ids) * np.float32(self.scale)
        row[list(self.masked)] = -np.inf
        return row

    def __str__(self) -> str:
        scale = f" * {self.scale:g}" if self.scale != 1 else ""
        masked = f", -inf at {list(self.masked)}" if self.masked else ""
        return f"ToyModel({self.vocab_size}, {self.seed}){scale}{masked}"


@dataclass(frozen=True)
class Run:
    """A request that is admitted somewhere in its output, and goes on to the end of it.

    Attributes:
        params: its parameters.
        prompt: its prompt.
        output: its output.
        admitted: number of ids of the output at its admission.
        at_once: whether the ids after those come in one step; otherwise each has a step.
        logits: of its steps.
    """

    params: Mapping[str, Any]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    admitted: int
    at_once: bool
    logits: Logits

    def fresh(self) -> Run:
        """The same request, admitted with all of its output."""
        return replace(self, admitted=len(self.output))

    def lengthened(self, length: int, *, in_output: bool) -> Run:
        """The same request after so many more ids: its own ones, repeated, in its output or in its prompt."""
        ids = (*self.prompt, *self.output) or (0,)
        history = (ids * (length // len(ids) + 1))[:length]
        if in_output:
            return replace(self, output=history + self.output, admitted=length + self.admitted)
        return replace(self, prompt=history + self.prompt)

    def describe(self) -> dict[str, Any]:
        """The example as JSON data."""
        return {
            "params": dict(self.params),
            "prompt": _described(self.prompt),
            "output": _described(self.output),
            "admitted_with": self.admitted,
            "one_step": self.at_once,
            "logits": str(self.logits),
        }


@dataclass(frozen=True)
class Rewind:
    """A run with a part of its output cut off, and replaced.

    Attributes:
        run: the run.
        kept: number of ids of its output that stay; not all.
        replacement: the ids that come instead of the others.
    """

    run: Run
    kept: int
    replacement: tuple[int, ...]

    def fresh(self) -> Run:
        """A request that is admitted with the history after the replacement."""
        return replace(self.run, output=self.run.output[: self.kept] + self.replacement).fresh()

    def describe(self) -> dict[str, Any]:
        """The example as JSON data."""
        return {**self.run.describe(), "kept": self.kept, "replacement": list(self.replacement)}


@dataclass(frozen=True)
class Crowd:
    """Requests in one batch.

    Attributes:
        members: the requests. Each is admitted without output, and has a step before each id of it, and one at the end.
        waits: number of steps before each joins.
    """

    members: tuple[Run, ...]
    waits: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        """The example as JSON data."""
        return {
            "requests": [
                {
                    "params": dict(member.params),
                    "prompt": list(member.prompt),
                    "output": list(member.output),
                    "joins_at_step": wait,
                    "logits": str(member.logits),
                }
                for member, wait in zip(self.members, self.waits, strict=True)
            ]
        }


class Examples:
    """Strategies of hypothesis for the examples of one processor.

    Args:
        params: parameters that the processor accepts.
        vocab_size: width of the logits; larger than all ids in the parameters.
    """

    def __init__(self, params: Sequence[Mapping[str, Any]], vocab_size: int) -> None:
        self.params = list(params)
        self._vocab_size = vocab_size
        named = sorted({number for given in params for number in integers_in(given) if 0 <= number < vocab_size})
        common = st.integers(0, min(vocab_size, _COMMON_IDS) - 1)
        special = st.sampled_from([*named, vocab_size - 1])
        self._ids = st.one_of(common, special, st.integers(0, vocab_size - 1))

    def runs(
        self,
        widths: Sequence[int] = (),
        scales: Sequence[float] = (1.0,),
        min_output: int = 0,
        max_output: int = _MAX_OUTPUT,
        lengths: Sequence[int] = (0,),
    ) -> SearchStrategy[Run]:
        """Runs; `widths` and `scales` are for the logits, `lengths` for histories before other ids."""

        @st.composite
        def draw_run(draw: DrawFn) -> Run:
            output = draw(st.lists(self._ids, min_size=min_output, max_size=max_output))
            masked = draw(st.lists(self._ids, max_size=min(_MAX_MASKED, self._vocab_size - 1), unique=True))
            logits = Logits(
                draw(st.sampled_from([*widths] or [self._vocab_size])),
                draw(st.integers(0, _MAX_SEED)),
                draw(st.sampled_from([*scales])),
                tuple(sorted(masked)),
            )
            run = Run(
                draw(st.sampled_from(self.params)),
                tuple(draw(st.lists(self._ids, max_size=_MAX_PROMPT))),
                tuple(output),
                draw(st.integers(0, len(output))),
                draw(st.booleans()),
                logits,
            )
            length = draw(st.sampled_from(lengths)) if len(lengths) > 1 else lengths[0]
            return run.lengthened(length, in_output=draw(st.booleans())) if length else run

        return draw_run()

    def rewinds(self) -> SearchStrategy[Rewind]:
        """Runs that are cut back."""
        replacements = st.lists(self._ids, max_size=2).map(tuple)
        return self.runs(min_output=1, lengths=LENGTHS).flatmap(
            lambda run: st.builds(Rewind, st.just(run), st.integers(0, len(run.output) - 1), replacements)
        )

    def crowds(self) -> SearchStrategy[Crowd]:
        """Batches of two requests or more."""
        some_runs = st.lists(self.runs(max_output=_MAX_MEMBER_OUTPUT), min_size=2, max_size=_MAX_MEMBERS)

        @st.composite
        def draw_crowd(draw: DrawFn) -> Crowd:
            members = tuple(replace(run, admitted=0, at_once=False) for run in draw(some_runs))
            return Crowd(members, tuple(draw(st.integers(0, _MAX_WAIT)) for _ in members))

        return draw_crowd()


def _described(ids: tuple[int, ...]) -> list[int] | str:
    """The ids, or a text if they are many: those that are repeated, and the rest."""
    if len(ids) <= _MAX_LISTED:
        return list(ids)
    for period in range(1, _MAX_PERIOD + 1):
        repeated = next((index for index in range(period, len(ids)) if ids[index] != ids[index - period]), len(ids))
        if len(ids) - repeated <= _MAX_LISTED:
            return f"{list(ids[:period])} repeated to {repeated} ids, then {list(ids[repeated:])}"
    return f"{list(ids[:_MAX_LISTED])}... ({len(ids)} ids)"


# Values of all types of JSON. None is large, because a processor may allocate as much as a parameter says.
_OTHER_VALUES: tuple[Any, ...] = (None, True, -1, 0, 0.5, "text", [], {}, [None], ["text"], [-1])


def changes_of(params: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Parameters with one change each: a key is left out or added, or a value is another one; with a description."""
    changes: list[tuple[str, dict[str, Any]]] = []
    for key, value in params.items():
        changes.append((f"without {key!r}", {name: other for name, other in params.items() if name != key}))
        changes += [
            (f"{key!r} is {other!r}", {**params, key: other})
            for other in _OTHER_VALUES
            if type(other) is not type(value) or other != value
        ]
    return [*changes, ("with the key 'unknown'", {**params, "unknown": 1})]


def integers_in(value: Any) -> Iterator[int]:
    """The integers in JSON data, at any depth, also those that are keys."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, str):
        if value.isdecimal() and len(value) < 10:
            yield int(value)
    elif isinstance(value, dict):
        for item in (*value.keys(), *value.values()):
            yield from integers_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from integers_in(item)
