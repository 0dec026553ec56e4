"""Makes the records of `simulate` from rows of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitport.testing import distributions
from logitport.testing.records import Candidates, ProcessorRecord, StepRecord, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.errors import LogitportError
    from logitport.testing.isolation import ChainResult
    from logitport.testing.runner import PlaceResult, ProcessorInfo


def summarize(logits: NDArray[np.float32], top_k: int) -> Summary:
    """Summarize a row, float32[vocab_size]."""
    probabilities = distributions.probabilities(logits)
    ids = distributions.top_ids(logits, top_k)
    allowed = int(np.count_nonzero(logits > -np.inf))
    return Summary(ids, logits[ids], probabilities[ids], distributions.entropy(probabilities), allowed)


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
    """Record one step.

    Args:
        index: its number.
        chosen: the id that was chosen, and its probability.
        raw: the model's logits, float32[vocab_size].
        result: the result of the step.
        chain: the processors.
        top_k: number of best ids to record.
        given: whether the id was given.
        keep_logits: whether to record whole rows.
    """
    row = result.row
    first = before = summarize(raw, top_k)
    logits, processors, stages = raw, [], [raw]
    for place, (info, effect) in enumerate(zip(chain, row.places, strict=True)):
        after = before if effect is None else summarize(effect.logits, top_k)
        processors.append(_record_place(place, info, logits, before, effect, after, result.errors.get(place)))
        logits, before = (logits, before) if effect is None else (effect.logits, after)
        stages.append(logits)
    final = summarize(row.logits, top_k)
    return StepRecord(
        index,
        *chosen,
        first,
        final,
        tuple(processors),
        distributions.moved_mass(distributions.probabilities(raw), distributions.probabilities(row.logits)),
        _candidates(chosen[0], first, final, [*stages, row.logits]),
        given,
        "" if row.error is None else str(row.error),
        raw if keep_logits else None,
        row.logits if keep_logits else None,
    )


def _candidates(
    chosen: int | None, first: Summary, final: Summary, stages: Sequence[NDArray[np.float32]]
) -> Candidates:
    chosen_ids = [] if chosen is None else [chosen]
    ids = np.unique(np.concatenate([first.top_ids, final.top_ids, np.array(chosen_ids, np.int32)]))
    table = np.stack([distributions.probabilities(logits)[ids] for logits in stages], axis=1)
    order = np.argsort(-np.maximum(table[:, 0], table[:, -1]), kind="stable")
    return Candidates(ids[order].astype(np.int32), table[order])


def _record_place(
    place: int,
    info: ProcessorInfo,
    logits: NDArray[np.float32],
    before: Summary,
    result: PlaceResult | None,
    after: Summary,
    error: LogitportError | None,
) -> ProcessorRecord:
    changed = logits if result is None else result.logits
    was_allowed, is_allowed = logits > -np.inf, changed > -np.inf
    forced = int(np.flatnonzero(is_allowed)[0]) if after.allowed == 1 < before.allowed else None
    denied, restored = was_allowed & ~is_allowed, ~was_allowed & is_allowed
    biased = was_allowed & is_allowed & (logits != changed)
    if forced is not None:
        denied = restored = biased = np.zeros(len(logits), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # a processor may return an infinite logit
        bias = changed[biased] - logits[biased]
    return ProcessorRecord(
        info.name,
        place,
        result is not None,
        info.reads_logits,
        _ids(denied),
        _ids(restored),
        _ids(biased),
        bias,
        forced,
        distributions.moved_mass(distributions.probabilities(logits), distributions.probabilities(changed)),
        before,
        after,
        () if result is None else result.edits,
        "" if error is None else str(error),
    )


def _ids(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.flatnonzero(mask).astype(np.int32)
