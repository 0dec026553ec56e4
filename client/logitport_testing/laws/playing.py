"""Plays examples in a runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import LogitportError
from logitport.shipping.request import Request
from logitport_testing.laws.outcomes import Outcome
from logitport_testing.laws.stopwatch import Measured, measured
from logitport_testing.runner import RowStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.shipping.request import ProcessorLike
    from logitport_testing.laws.examples import Crowd, Rewind, Run
    from logitport_testing.laws.stopwatch import TimeLimits
    from logitport_testing.runner import Batch, ChainRunner, RowResult


@dataclass(frozen=True)
class Subject:
    """The processor under test, and the settings of its engine.

    Attributes:
        processor: as in `Request.processors`.
        tokenizer_id: the engine's name for its tokenizer.
        eos_token_ids: the engine's ids that end a sequence.
        sampling_params: the engine's parameters of each request.
        limits: how long calls in this process may take; None for any time.
    """

    processor: ProcessorLike
    tokenizer_id: str = ""
    eos_token_ids: tuple[int, ...] = ()
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    limits: TimeLimits | None = None

    def open(self, runner: ChainRunner, vocab_size: int) -> Batch:
        """Open an empty batch with new instances of the processor."""
        return runner.open(vocab_size, tokenizer_id=self.tokenizer_id, eos_token_ids=self.eos_token_ids)

    def request(self, run: Run, history: Sequence[int]) -> Request:
        """The request of a run, with the ids after its prompt that the history has."""
        return Request(
            run.prompt,
            tuple(history[len(run.prompt) :]),
            processors=[(self.processor, run.params)],
            sampling_params=self.sampling_params,
        )


class _Played:
    """One request in a batch. `ended` is the outcome with its error, if it has one."""

    def __init__(self, subject: Subject, batch: Batch, slot: int, run: Run) -> None:
        self._batch = batch
        self._slot = slot
        self._run = run
        self._history = [*run.prompt, *run.output[: run.admitted]]
        self.ended: Outcome | None = None
        self._limits = subject.limits
        error: LogitportError | None = None
        with measured(self._limits and self._limits.load) as call:
            try:
                batch.add(slot, subject.request(run, self._history))
            except LogitportError as caught:
                error = caught
        if error is not None or str(call):
            self.ended = Outcome(error=error, admitted=False, output_length=run.admitted, too_slow=_slow(call, "start"))

    def prepare(self, new_ids: Sequence[int] = (), keep: int | None = None) -> RowStep:
        """Cut the history back to `keep` ids, append new ones, and return the row for the step."""
        base_length = len(self._history) if keep is None else keep
        self._history = [*self._history[:base_length], *new_ids]
        return RowStep(self._slot, base_length, tuple(new_ids))

    def logits(self) -> NDArray[np.float32]:
        """The model's logits after the history."""
        return self._run.logits.after(self._history)

    def conclude(self, result: RowResult | None, too_slow: str = "") -> Outcome:
        """The outcome of the step that `prepare` began; `result` is None if it was stopped."""
        length = len(self._history) - len(self._run.prompt)
        error = None if result is None else result.error
        if result is not None and error is None and not too_slow:
            return Outcome(result.logits, output_length=length)
        self.ended = Outcome(error=error, output_length=length, too_slow=too_slow)
        return self.ended

    def step(self, new_ids: Sequence[int] = (), keep: int | None = None) -> Outcome:
        """Step alone. A request that has ended does not step."""
        if self.ended is not None:
            return self.ended
        row = self.prepare(new_ids, keep)
        logits = self.logits()[None]
        result: RowResult | None = None
        with measured(self._limits and self._limits.step) as call:
            (result,) = self._batch.step([row], logits)
        return self.conclude(result, _slow(call, "step"))

    def steps(self) -> Iterator[Outcome]:
        """Step to the end of the run, or to an error."""
        rest = self._run.output[self._run.admitted :]
        later = [rest] if self._run.at_once and rest else [(token_id,) for token_id in rest]
        for new_ids in ((), *later):
            yield self.step(new_ids)
            if self.ended is not None:
                return


def _slow(call: Measured, name: str) -> str:
    return f"the {name} {call}" if str(call) else ""


def play(subject: Subject, runner: ChainRunner, run: Run) -> list[Outcome]:
    """Play a run alone. Returns the outcome of each step; after an error there are no more.

    The last outcome is StateLost if the processor keeps state that does not follow from the history.
    """
    batch = subject.open(runner, run.logits.vocab_size)
    played = _Played(subject, batch, 0, run)
    outcomes = list(played.steps())
    if played.ended is None:
        try:
            batch.check_rebuildable(0)
        except LogitportError as error:
            outcomes.append(Outcome(error=error))
    return outcomes


def play_rewind(subject: Subject, runner: ChainRunner, rewind: Rewind) -> Outcome | None:
    """Play a run, cut its history back, and return the outcome of the step after that. None if the run fails before."""
    run = rewind.run
    played = _Played(subject, subject.open(runner, run.logits.vocab_size), 0, run)
    for _ in played.steps():
        pass
    if played.ended is not None:
        return None
    return played.step(rewind.replacement, len(run.prompt) + rewind.kept)


def play_crowd(subject: Subject, runner: ChainRunner, crowd: Crowd) -> list[list[Outcome]]:
    """Play all requests in one batch. Returns the outcomes of each."""
    batch = subject.open(runner, crowd.members[0].logits.vocab_size)
    outcomes: list[list[Outcome]] = [[] for _ in crowd.members]
    active: dict[int, _Played] = {}
    last = max(wait + len(member.output) for member, wait in zip(crowd.members, crowd.waits, strict=True))
    for step in range(last + 1):
        rows: list[tuple[int, RowStep]] = []
        for slot, (member, wait) in enumerate(zip(crowd.members, crowd.waits, strict=True)):
            done = step - wait
            if done == 0:
                active[slot] = _Played(subject, batch, slot, member)
            if done > len(member.output):
                batch.remove(slot)
            elif done >= 0 and active[slot].ended is None:
                rows.append((slot, active[slot].prepare(member.output[done - 1 : done] if done else ())))
        if rows:
            logits = np.stack([active[slot].logits() for slot, _ in rows])
            results: Sequence[RowResult | None] = [None] * len(rows)
            with measured(subject.limits and subject.limits.step) as call:
                results = batch.step([row for _, row in rows], logits)
            for (slot, _), result in zip(rows, results, strict=True):
                outcomes[slot].append(active[slot].conclude(result, _slow(call, "step")))
    for slot, played in active.items():
        if played.ended is not None and not played.ended.admitted:
            outcomes[slot].append(played.ended)
    return outcomes
