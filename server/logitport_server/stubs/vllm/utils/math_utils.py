"""Stands for vLLM's module of this name; of what is in it, what processors use."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def round_up(x: int, y: int) -> int:
    """The next multiple of `y`."""
    return cdiv(x, y) * y


def round_down(x: int, y: int) -> int:
    """The last multiple of `y`."""
    return x // y * y


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is no less than `n`; 1 for what is less than 1."""
    return 1 << max(n - 1, 0).bit_length()
