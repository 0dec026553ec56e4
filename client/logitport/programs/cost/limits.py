"""The worst case of a program in milliseconds, and its limit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded
from logitport.programs.cost.measurement import Price
from logitport.programs.cost.prices import prices
from logitport.programs.cost.work import FLOATS, work_of

if TYPE_CHECKING:
    from logitport.programs.cost.prices import Prices
    from logitport.programs.cost.work import Work
    from logitport.programs.verifier import Verified

# For one row of the engine's vocabulary, on one core. For 151,936 logits of the slowest dtype, a core of an AMD EPYC
# with AVX-512 is priced with 0.9 ms for min-p, 16 ms for a sort, 28 ms for top-k and 37 ms for top-p, which sorts.
# Refused are 50 `exp`, 156 ms where their results are subnormal, and 500 `cumsum`, 76 to 88 ms. A core of half of that
# speed still runs top-p.
DEFAULT_LIMIT_MS = 75.0
# Of the result: rows are copied there and back if they are irregular, and searched for NaN.
_PASSES = 6
_FREE = Price(0.0, 0.0)


def milliseconds(
    verified: Verified, vocab_size: int, rows: int = 1, *, priced: Prices | None = None, dtype: str | None = None
) -> float:
    """The time of one core for a run of a program, for the worst values. By arithmetic alone: nothing is run.

    Args:
        verified: the program.
        vocab_size: width of the logits.
        rows: number of rows.
        priced: prices of the device; by default those of this CPU.
        dtype: of the logits: "float32", "float16" or "bfloat16"; by default the slowest one.

    Raises:
        InvalidProgram, LimitExceeded: as `Verified.check_width`.
    """
    priced = priced if priced is not None else prices()
    dtypes = FLOATS if dtype is None else (dtype,)
    return max(sum(_by_operator(verified, vocab_size, rows, priced, one).values()) for one in dtypes) / 1e6


def check_cost(
    verified: Verified,
    vocab_size: int,
    limit_ms: float = DEFAULT_LIMIT_MS,
    *,
    priced: Prices | None = None,
    dtype: str | None = None,
) -> float:
    """Refuse a program whose worst case takes too long. Returns the milliseconds for a row.

    Args:
        verified: the program.
        vocab_size: width of the logits.
        limit_ms: permitted milliseconds for each row.
        priced: prices of the device; by default those of this CPU.
        dtype: of the logits; by default the slowest one.

    Raises:
        InvalidProgram: as `Verified.check_width`.
        LimitExceeded: it takes longer; or as `Verified.check_width`.
    """
    priced = priced if priced is not None else prices()
    totals = [_by_operator(verified, vocab_size, 1, priced, one) for one in (FLOATS if dtype is None else (dtype,))]
    slowest = max(totals, key=lambda total: sum(total.values()))
    needed = sum(slowest.values()) / 1e6
    if needed <= limit_ms:
        return needed
    operator, nanoseconds = slowest.most_common(1)[0]
    count = sum(value.operator == operator for value in verified.program.values)
    raise LimitExceeded(
        f"program {verified.program.name!r} may take {needed:.3g} ms for a row of {vocab_size} logits on this machine; "
        f"the limit is {limit_ms:g} ms. Its {count} values of {operator!r} take {nanoseconds / 1e6:.3g} ms: use fewer "
        "of them, or smaller ones, or raise the limit"
    )


def _by_operator(verified: Verified, vocab_size: int, rows: int, priced: Prices, dtype: str) -> Counter[str]:
    """Nanoseconds of the values of each operator."""
    total: Counter[str] = Counter()
    for value, work in zip(verified.program.values, work_of(verified, vocab_size, dtype), strict=True):
        total[value.operator] += _nanoseconds(work, rows, priced)  # type: ignore[assignment]
    result_bytes = rows * vocab_size * 4 * _PASSES
    total["logits"] += result_bytes * priced.byte  # type: ignore[assignment]
    return total


def _nanoseconds(work: Work, rows: int, priced: Prices) -> float:
    price = priced.operators[work.key] if work.key else _FREE
    elements = work.units * price.unit + work.bytes * priced.byte
    return priced.value + work.calls * price.call + (rows if work.has_rows else 1) * elements
