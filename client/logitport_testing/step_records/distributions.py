"""Probabilities of rows of logits, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def probabilities(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Softmax of a row, float[vocab_size]; float64, all 0 if no logit is above -inf."""
    row = logits.astype(np.float64)
    highest = row.max()
    if highest == -np.inf:
        return np.zeros(len(row))
    weights: NDArray[np.float64] = np.exp(row - highest) if np.isfinite(highest) else (row == highest).astype(float)
    weights /= weights.sum()
    return weights


def entropy(distribution: NDArray[np.float64]) -> float:
    """Entropy in nats."""
    positive = distribution[distribution > 0]
    return float(-(positive * np.log(positive)).sum()) + 0.0


def moved_mass(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Probability mass that moved to other ids, 0 to 1: the total variation distance. 1 if `after` has no mass left."""
    if before.any() and not after.any():
        return 1.0
    return float(np.abs(before - after).sum() / 2)


def top_ids(logits: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """The ids with the highest logits above -inf, best first, int32[count or less]. Of equals, lower ids come first."""
    count = min(count, len(logits))
    if not count:
        return np.empty(0, np.int32)
    bound = np.partition(logits, -count)[-count]
    candidates = np.flatnonzero((logits >= bound) & (logits > -np.inf))
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    return candidates[order].astype(np.int32)
