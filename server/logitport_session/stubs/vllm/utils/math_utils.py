"""Stub of vLLM's module of this name, with the functions that processors use."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not less than `n`; 1 if `n` is less than 1."""
    return 1 << max(n - 1, 0).bit_length()
