"""What the test of every engine shares: the requests, and the marks by which its cells reach docs/compatibility.md.

A cell is one dialect on one engine. Its test gives the same requests to the engine twice: with a processor of the
engine's own kind, and through logitport with the same effect in that dialect; the tokens must be equal. Where an engine
refuses, by a message of ours, the test is of the refusal.
"""

from __future__ import annotations

import random

import pytest

from tests.compatibility.effect import DIALECTS

TOKENS = 64
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def prompts(vocab_size: int, count: int = 8, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths, so that requests come and go at different steps where an engine has fewer slots."""
    draw = random.Random(seed)
    return [[draw.randrange(2, vocab_size) for _ in range(3 + 2 * n)] for n in range(count)]


def lengths(count: int = 8) -> list[int]:
    """How many tokens each of them generates: the first `TOKENS`, the others less, so that they end one by one."""
    return [TOKENS - 5 * n for n in range(count)]
