"""The requests of a checked engine, and the comparison of their rows with the reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.storm import chains
from tests.storm.classes import BAD, GOOD, payload
from tests.storm.reference import Context, Undecided, expected

if TYPE_CHECKING:
    from tests.storm.actors.base import Records
    from tests.storm.chains import Chain

EOS = 1


@dataclass(eq=False)
class Running:
    """A running request, as the engine knows it.

    Attributes:
        ids: its history, without `new`.
        new: ids that the next step sends.
        drafts: drafts of the last step, of which `new` may take up some.
        calls: how often its processors were called.
        since: begin of its last step that did not fail, or of its admission.
        harmful: whether its chain may fail at any time.
        skips: whether it goes on after a failure.
        entered: whether its steps began before its admission had ended.
        longest: length of its history when it was sent; it may be rewound before the reply arrives.
    """

    chain: Chain
    ids: np.ndarray[Any, Any]
    prompt: int
    handle: Any = None
    new: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    calls: int = 0
    since: float = 0.0
    harmful: bool = False
    skips: bool = False
    entered: bool = False
    name: str = ""
    longest: int = 0

    def __post_init__(self) -> None:
        self.longest = len(self.ids)


class Comparison:
    """Compares rows with the reference, and sends a record of each wrong one."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def step(self, rows: list[tuple[Running, int]], before: Any, after: Any, result: Any) -> None:
        """Compare all rows of a step.

        Args:
            rows: the request of each row, and how many drafts the row has seen.
            before, after: float32[rows, vocab].
            result: of the step.
        """
        for at, ((one, offset), raw, row) in enumerate(zip(rows, before, after, strict=True)):
            if one.handle in result.skipped:
                if not np.array_equal(raw, row):
                    self._wrong(one, "a row of a skipped request has changed")
            elif one.handle not in result.failures and not one.harmful:
                ids = np.append(one.ids, np.array(one.drafts[:offset], np.int32))
                context = Context(ids, one.prompt, len(raw), (EOS,), offset)
                self.row(one, row, context, raw)
                if chains.only_edits(one.chain) and np.isneginf(row).all() != (at in result.all_denied_rows):
                    self._wrong(one, f"row {at} is all denied, or said to be: {result.all_denied_rows}")
        if not result.failures and not result.skipped:
            self._applied(rows, result.rows_applied)

    def row(self, one: Running, row: Any, context: Context, before: Any) -> None:
        """Compare one row."""
        self._records.counts["rows"] += 1
        try:
            reference = expected(one.chain, context, before, one.calls)
        except Undecided:
            self._records.counts["undecided rows"] += 1
            return
        row = np.asarray(row)
        if not np.array_equal(row, reference):
            places = np.flatnonzero(row != reference)[:5].tolist()
            found = [(at, float(before[at]), float(row[at]), float(reference[at])) for at in places]
            self._wrong(one, f"ids with logits before, found and expected: {found}, drafts {context.drafts}")

    def _applied(self, rows: list[tuple[Running, int]], applied: dict[str, int]) -> None:
        """Compare what the reply says was applied."""
        counts = Counter(name for one, _ in rows for name, _ in one.chain if name in chains.BUILTINS)
        reported = {name: count for name, count in applied.items() if name in chains.BUILTINS}
        if reported != counts:
            self._wrong(rows[0][0], f"the reply says {reported} of a step with {dict(counts)}")

    def _wrong(self, one: Running, detail: str) -> None:
        fields = {"length": len(one.ids), "prompt": one.prompt, "calls": one.calls}
        self._records.add("wrong row", detail=detail, chain=one.chain, **fields)


def processors(chain: Chain) -> list[tuple[Any, dict[str, Any]]]:
    """The chain as a request names it."""
    return [(payload(name) if name in GOOD or name in BAD else name, params) for name, params in chain]


def logits(generator: Any, rows: int, vocab: int) -> Any:
    """Random logits, float32[rows, vocab]: some with few bits, so that there are equal ones."""
    if generator.random() < 0.3:
        return (generator.integers(-512, 512, (rows, vocab)) / 64).astype(np.float32)
    return generator.normal(0, 3, (rows, vocab)).astype(np.float32)
