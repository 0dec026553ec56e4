"""Quantiles of buckets are those of Prometheus."""

from __future__ import annotations

import pytest

from logitport_server.cli.activity import quantile

BOUNDS = (0.1, 0.2, 0.4)


@pytest.mark.parametrize(
    ("counts", "part", "seconds", "is_above"),
    [
        ((10, 10, 10, 10), 0.5, 0.05, False),
        ((0, 10, 10, 10), 0.5, 0.15, False),
        ((0, 10, 10, 10), 1.0, 0.2, False),
        ((50, 90, 99, 100), 0.5, 0.1, False),
        ((50, 90, 99, 100), 0.9, 0.2, False),
        ((50, 90, 99, 100), 0.99, 0.4, False),
        ((50, 90, 99, 100), 0.995, 0.4, True),
        ((0, 0, 0, 1), 0.5, 0.4, True),
        ((0, 0, 5, 5), 0.0, 0.2, False),
    ],
)
def test_quantiles(counts: tuple[int, ...], part: float, seconds: float, is_above: bool) -> None:
    found = quantile(BOUNDS, counts, part)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert found.is_above == is_above


def test_without_counts_there_is_none() -> None:
    assert quantile(BOUNDS, (0, 0, 0, 0), 0.5) is None
    assert quantile((), (), 0.5) is None
