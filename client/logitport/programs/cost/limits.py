"""The worst case of a program in milliseconds, and its limit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded
from logitport.programs.cost.prices import TORCH, Price
from logitport.programs.cost.work import work_of

if TYPE_CHECKING:
    from logitport.programs.cost.prices import Prices
    from logitport.programs.cost.work import Work
    from logitport.programs.verifier import Verified

# For one row of the engine's vocabulary, on one core. For 151,936 logits, min-p is priced with 1.3 ms, top-p, which
# sorts, with 26 ms, and top-k with 29 ms. Refused are 50 `exp`, 162 ms because their results may be subnormal, and 500
# `cumsum`, 81 ms.
DEFAULT_LIMIT_MS = 75.0
# Of the result: rows are copied there and back if they are irregular, and searched for NaN.
_PASSES = 6
_FREE = Price(0.0, 0.0, 0.0)


def milliseconds(verified: Verified, vocab_size: int, rows: int = 1, *, priced: Prices = TORCH) -> float:
    """The time of one core for a run of a program, for the worst values. By arithmetic alone: nothing is run.

    Args:
        verified: the program.
        vocab_size: width of the logits.
        rows: number of rows.
        priced: prices of the runtime.

    Raises:
        InvalidArgument, LimitExceeded: as `Verified.check_width`.
    """
    return sum(_by_operator(verified, vocab_size, rows, priced).values()) / 1e6


def check_cost(
    verified: Verified, vocab_size: int, limit_ms: float = DEFAULT_LIMIT_MS, *, priced: Prices = TORCH
) -> float:
    """Refuse a program whose worst case takes too long. Returns the milliseconds for a row.

    Args:
        verified: the program.
        vocab_size: width of the logits.
        limit_ms: permitted milliseconds for each row.
        priced: prices of the runtime.

    Raises:
        InvalidArgument: as `Verified.check_width`.
        LimitExceeded: it takes longer; or as `Verified.check_width`.
    """
    total = _by_operator(verified, vocab_size, 1, priced)
    needed = sum(total.values()) / 1e6
    if needed <= limit_ms:
        return needed
    operator, nanoseconds = total.most_common(1)[0]
    count = sum(value.operator == operator for value in verified.program.values)
    raise LimitExceeded(
        f"program {verified.program.name!r} may take {needed:.3g} ms of a core for a row of {vocab_size} logits; "
        f"the limit is {limit_ms:g} ms. Its {count} values of {operator!r} take {nanoseconds / 1e6:.3g} ms: use fewer "
        "of them, or smaller ones"
    )


def _by_operator(verified: Verified, vocab_size: int, rows: int, priced: Prices) -> Counter[str]:
    """Nanoseconds of the values of each operator."""
    total: Counter[str] = Counter()
    for value, work in zip(verified.program.values, work_of(verified, vocab_size), strict=True):
        total[value.operator] += _nanoseconds(work, rows, priced)  # type: ignore[assignment]
    result_bytes = rows * vocab_size * 4 * _PASSES
    total["logits"] += result_bytes * priced.byte  # type: ignore[assignment]
    return total


def _nanoseconds(work: Work, rows: int, priced: Prices) -> float:
    price = priced.operators.get(work.operator, priced.others) if work.operator else _FREE
    elements = work.units * (price.plain if work.plain else price.strided) + work.bytes * priced.byte
    return priced.value + work.calls * price.call + (rows if work.has_rows else 1) * elements
