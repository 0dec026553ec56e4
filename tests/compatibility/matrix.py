"""Requests that the tests of all engines share, and the marks by which cells reach docs/compatibility.md.

A cell is one dialect on one engine. Its test runs the same requests twice: with the engine's own kind of processor, and
through logitport with the same effect in that dialect. The tokens must be equal. If an engine refuses, with a message
of logitport, the test expects the refusal.
"""

from __future__ import annotations

import random

import pytest

from tests.compatibility.effect import DIALECTS

TOKENS = 64
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def prompts(vocab_size: int, count: int = 8, seed: int = 0) -> list[list[int]]:
    """Return prompts of different lengths, so that requests start and end at different steps if slots are few."""
    draw = random.Random(seed)
    return [[draw.randrange(2, vocab_size) for _ in range(3 + 2 * n)] for n in range(count)]


def lengths(count: int = 8) -> list[int]:
    """Return the output length of each request: `TOKENS` for the first, less for each later one."""
    return [TOKENS - 5 * n for n in range(count)]
