"""Quantiles of times that were counted in buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Quantile(NamedTuple):
    """An estimate.

    Attributes:
        seconds: the estimate.
        is_above: whether the quantile is above it by an unknown time, because it is in the last bucket.
    """

    seconds: float
    is_above: bool


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> Quantile | None:
    """Estimate a quantile as `histogram_quantile` of Prometheus: linear between the bounds of its bucket.

    Args:
        bounds: upper bounds of the buckets, ascending, without the last one, which has none.
        counts: cumulative counts, one more than bounds.
        part: from 0 to 1, for example 0.99.

    Returns:
        None if nothing was counted.

    Source: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
    """
    if not counts or not counts[-1]:
        return None
    rank = part * counts[-1]
    below, lower = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count >= rank and count > below:
            return Quantile(lower + (bound - lower) * max(0.0, rank - below) / (count - below), is_above=False)
        below, lower = count, bound
    return Quantile(lower, is_above=True)
