"""Durations, sizes and rates."""

from __future__ import annotations

import pytest

from logitport_server.cli.display import age, latency, rate, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0ms"),
        (0.0, "0ms"),
        (0.0134, "13ms"),
        (1.9, "1s"),
        (59.9, "59s"),
        (60.0, "1m"),
        (3599.0, "59m59s"),
        (3600.0, "1h"),
        (3605.0, "1h"),
        (8000.0, "2h13m"),
        (90_000.0, "1d1h"),
        (86_400.0 * 400, "400d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0us"), (2.5e-5, "25us"), (0.0009996, "1ms"), (0.00125, "1.25ms"), (0.9996, "1s"), (2.5, "2.5s")],
)
def test_latencies(seconds: float, text: str) -> None:
    assert latency(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (190_000_000, "181MiB"), (1 << 40, "1TiB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0.0, "0.0"), (54.94, "54.9"), (9999.94, "9999.9"), (9999.99, "10000"), (123456.7, "123457")],
)
def test_rates(per_second: float, text: str) -> None:
    assert rate(per_second) == text
