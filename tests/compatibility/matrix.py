"""Requests that the tests of all engines share, and the marks by which cells reach docs/compatibility.md.

A cell is one row of the matrix on one engine. Its test runs the same requests twice: with the engine's own kind of
processor, and through logitport with the same effect, in a dialect or by built-ins. The tokens must be equal; in the
row "report", so must the reports. If an engine refuses, with a message of logitport, the test expects the refusal.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.compatibility import behaviors, effect
from tests.compatibility.behaviors import BEHAVIORS
from tests.compatibility.effect import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport import Client

TOKENS = 64
ROWS = [*DIALECTS, *BEHAVIORS]
REPORT = "report"
every_row = pytest.mark.parametrize("row", ROWS)

# The effect of a row, by name: a function of a history and a row of logits. All dialects have one effect.
REFERENCES: dict[str, Callable[[Sequence[int], Any], Any]] = {
    "effect": effect.apply,
    "phases": behaviors.phases,
    "loop guard": behaviors.loop_guard,
    REPORT: behaviors.report,
}


def reference_of(row: str) -> str:
    """Return the name of a row's reference."""
    return "effect" if row in DIALECTS else row


def chain_of(row: str, client: Client) -> list[tuple[str, dict[str, Any]]]:
    """Return a row's chain, with classes as digests, after their registration."""
    chain = [(DIALECTS[row], {})] if row in DIALECTS else BEHAVIORS[row]
    return [(each if isinstance(each, str) else client.register(each).digest, params) for each, params in chain]


def prompts(vocab_size: int, reference: str = "effect", count: int = 8, seed: int = 0) -> list[list[int]]:
    """Return prompts of different lengths, so that requests start and end at different steps if slots are few."""
    draw = random.Random(seed)
    drawn = [[draw.randrange(2, vocab_size) for _ in range(3 + 2 * n)] for n in range(count)]
    return drawn if reference == "effect" else behaviors.prompts_of(drawn)


def lengths(count: int = 8) -> list[int]:
    """Return the output length of each request: `TOKENS` for the first, less for each later one."""
    return [TOKENS - 5 * n for n in range(count)]


def check_reports(reports: Sequence[Any], histories: Sequence[list[int]], chain: Sequence[tuple[str, Any]]) -> None:
    """Compare reports, as objects of JSON, with those of the reference, from the prompt and the output of each."""
    expected = [behaviors.report_of(history, chain) for history in histories]
    assert list(reports) == expected
    assert {event["name"] for one in expected for event in one["events"]} == {"budget_hit", "loop_found", "counted"}
