"""The part of the reference that reads logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Row = NDArray[np.float32]
# Sums of probabilities in float32 differ by their order.
_ROUNDING = 1e-5


class Undecided(Exception):
    """The rounding of a sum decides whether an id is kept, so that several results are correct."""


def _temperature(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    temperature = np.float32(params["temperature"])
    if temperature >= np.float32(1e-5):
        return row / temperature
    greedy = np.full_like(row, -np.inf)
    greedy[np.argmax(row)] = row.max()
    return greedy


def _top_k(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    k = params["top_k"]
    if not 0 < k < len(row):
        return row.copy()
    return np.where(row < np.sort(row)[-k], np.float32(-np.inf), row)


def _top_p(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    if np.isneginf(row).all():
        return row.copy()
    order = np.argsort(row, kind="stable")  # of equal logits, the higher ids are kept first
    sums = np.cumsum(_probabilities(row)[order])
    limit = 1 - params["top_p"]
    # The last id is always kept; one with a logit of -inf looks the same, kept or not.
    decided = np.abs(sums - limit) > _ROUNDING * limit + (1e-7 if limit else 1e-37)
    decided[-1] = True
    if not (decided | np.isneginf(row[order])).all():
        raise Undecided
    removed = sums <= limit
    removed[-1] = False
    kept = row.copy()
    kept[order[removed]] = -np.inf
    return kept


def _min_p(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    if np.isneginf(row).all():
        return row.copy()
    probabilities = _probabilities(row)
    limit = np.float64(np.float32(params["min_p"])) * probabilities.max()
    near = (np.abs(probabilities - limit) <= _ROUNDING * limit) & (row < row.max()) & np.isfinite(row)
    if near.any() and limit > 0:
        raise Undecided
    return np.where(probabilities < limit, np.float32(-np.inf), row)


def _repetition_penalty(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    penalty = np.float32(params["repetition_penalty"])
    penalized = np.where(row > 0, row / penalty, row * penalty)
    seen = np.zeros(len(row), bool)
    seen[ids] = True
    return np.where(seen, penalized, row)


def _scale(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    return row * np.float32(params["factor"])


def _add_call_count(row: Row, params: dict[str, Any], ids: Any, calls: int) -> Row:
    return row + np.float32(calls)


def _probabilities(row: Row) -> NDArray[np.float64]:
    weights = np.exp(row.astype(np.float64) - row.max())
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


READING: dict[str, Callable[[Row, dict[str, Any], Any, int], Row]] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "repetition_penalty": _repetition_penalty,
    "Scale": _scale,
    "ScaleProgram": _scale,
    "AddCallCount": _add_call_count,
}
