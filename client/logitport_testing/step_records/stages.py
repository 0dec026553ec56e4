"""Makes the records of `simulate` from rows of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitport.core.row_events import read_values
from logitport_testing.step_records import distributions
from logitport_testing.step_records.step_record import Candidates, ProcessorRecord, StepRecord, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.errors import LogitportError
    from logitport_testing.runner import PlaceResult, ProcessorInfo, RowResult

    # The row, with an element of `places` for each processor; and the errors of those that were left out, by place.
    ChainResult = tuple[RowResult, Mapping[int, LogitportError]]


class Stage:
    """A row at one place of the chain, with its best ids, and its softmax, which takes longest for wide rows."""

    def __init__(self, logits: NDArray[np.float32], top_k: int) -> None:
        self.logits = logits
        self.probabilities = distributions.probabilities(logits)
        ids = distributions.top_ids(logits, top_k)
        entropy = distributions.entropy(self.probabilities)
        allowed = int(np.count_nonzero(logits > -np.inf))
        self.summary = Summary(ids, logits[ids], self.probabilities[ids], entropy, allowed)

    def moved_to(self, other: Stage) -> float:
        """The mass that is elsewhere in the other row."""
        return 0.0 if other is self else distributions.moved_mass(self.probabilities, other.probabilities)


def record_step(
    index: int,
    chosen: tuple[int | None, float],
    raw: NDArray[np.float32],
    result: ChainResult,
    chain: Sequence[ProcessorInfo],
    top_k: int,
    *,
    given: bool,
    keep_logits: bool,
) -> StepRecord:
    """Record one step: the chosen id with its probability, the result of the chain, and the errors by place."""
    row, errors = result
    stages, processors = [Stage(raw, top_k)], []
    for place, (info, effect) in enumerate(zip(chain, row.places, strict=True)):
        before = stages[-1]
        stages.append(before if effect is None else Stage(effect.logits, top_k))
        processors.append(record_place(place, info, before, effect, stages[-1], errors.get(place)))
    same = np.array_equal(row.logits, stages[-1].logits)
    stages.append(stages[-1] if same else Stage(row.logits, top_k))
    return StepRecord(
        index,
        *chosen,
        stages[0].summary,
        stages[-1].summary,
        tuple(processors),
        stages[0].moved_to(stages[-1]),
        _candidates(chosen[0], stages),
        given,
        "" if row.error is None else str(row.error),
        raw if keep_logits else None,
        row.logits if keep_logits else None,
    )


def _candidates(chosen: int | None, stages: Sequence[Stage]) -> Candidates:
    chosen_ids = np.array([] if chosen is None else [chosen], np.int32)
    ids = np.unique(np.concatenate([stages[0].summary.top_ids, stages[-1].summary.top_ids, chosen_ids]))
    table = np.stack([stage.probabilities[ids] for stage in stages], axis=1)
    order = np.argsort(-np.maximum(table[:, 0], table[:, -1]), kind="stable")
    return Candidates(ids[order].astype(np.int32), table[order])


def record_place(
    place: int,
    info: ProcessorInfo,
    before: Stage,
    effect: PlaceResult | None,
    after: Stage,
    error: LogitportError | None = None,
) -> ProcessorRecord:
    """Record the effect of one processor on the row before it; None if it was not called."""
    logits, changed = before.logits, after.logits
    was_allowed, is_allowed = logits > -np.inf, changed > -np.inf
    is_forced = after.summary.allowed == 1 < before.summary.allowed
    forced = int(np.flatnonzero(is_allowed)[0]) if is_forced else None
    denied, restored = was_allowed & ~is_allowed, ~was_allowed & is_allowed
    biased = was_allowed & is_allowed & (logits != changed)
    if forced is not None:
        denied = restored = biased = np.zeros(len(logits), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # a processor may return an infinite logit
        bias = changed[biased] - logits[biased]
    return ProcessorRecord(
        info.name,
        place,
        effect is not None,
        info.reads_logits,
        _ids(denied),
        _ids(restored),
        _ids(biased),
        bias,
        forced,
        before.moved_to(after),
        before.summary,
        after.summary,
        () if effect is None else effect.edits,
        "" if error is None else str(error),
        () if effect is None else tuple(_events(effect)),
    )


def _events(effect: PlaceResult) -> Iterator[tuple[str, Mapping[str, int | str]]]:
    return ((event.name, read_values(event.name, event.values)) for event in effect.events if event.name)


def _ids(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.flatnonzero(mask).astype(np.int32)
