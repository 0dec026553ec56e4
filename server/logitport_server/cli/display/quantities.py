"""Durations, sizes and rates, short enough for a column."""

from __future__ import annotations

NOTHING = "-"
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def age(seconds: float) -> str:
    """Write a time span with its two largest units, for example "2h13m"; below a second in milliseconds."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def latency(seconds: float) -> str:
    """Write a time below some seconds with three digits, for example "1.25ms"."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g}{unit}"
    return f"{seconds:.3g}s"


def size(num_bytes: int) -> str:
    """Write a size with a binary unit, for example "81.5MiB"."""
    value = float(num_bytes)
    for unit in _SIZES[:-1]:
        if value < 1023.5:
            return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.4g}{_SIZES[-1]}"


def rate(per_second: float) -> str:
    """Write a number per second with one decimal; large ones without."""
    return f"{per_second:.1f}" if per_second < 9999.95 else f"{per_second:.0f}"
