"""The worst case of a verified program in milliseconds, and its limit. By arithmetic alone: nothing is run.

The prices of torch are rounded from measurements with torch 2.13 on AMD EPYC processors with AVX-512, for subnormal
numbers, ties, ascending numbers, random indices and strided memory: each is for the slowest input and dtype.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import LimitExceeded
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_programs.program import Value
    from logitport_programs.verifier import Verified

# For one row of the engine's vocabulary, on one core. For 151,936 logits, min-p is priced with 1.3 ms, top-p, which
# sorts, with 26 ms, and top-k with 29 ms. Refused are 50 `exp`, 162 ms because their results may be subnormal, and 500
# `cumsum`, 81 ms.
DEFAULT_LIMIT_MS = 75.0
# Over the result: rows are copied there and back if they are irregular, and searched for NaN.
_PASSES = 6
# Logits count as float32, their longest type.
_BYTES = {Element.LOGITS: 4, Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}
_SORTS = frozenset({"argsort", "top_k"})
# Results without a computation of their own. The runtime has most of them as views of their inputs.
FREE = frozenset({"logits", "full", "unsqueeze", "squeeze", "slice", "expand", "history_length"})
# Only memory is read and written.
COPIES = frozenset({"constant", "arange"})


class Price(NamedTuple):
    """Time of an operator, in nanoseconds.

    Attributes:
        plain: for each unit of work, if inputs and result are contiguous, with one axis at most.
        strided: for each unit of work otherwise.
        call: for each call, besides its units.
    """

    plain: float
    strided: float
    call: float = 3_500.0


class Prices(NamedTuple):
    """The prices of one runtime.

    Attributes:
        operators: of single operators, by name.
        others: of each other operator.
        byte: of a byte that is read or written, in nanoseconds.
        value: time of a run for each value besides its operator, in nanoseconds.
    """

    operators: Mapping[str, Price]
    others: Price
    byte: float
    value: float


TORCH = Prices(
    {
        "amin": Price(1.0, 60.0),
        "argmax": Price(4.0, 45.0),
        "argsort": Price(5.0, 25.0, 8_000.0),
        "cast": Price(4.0, 10.0, 20_000.0),  # to int64, which searches for numbers that do not fit
        "concatenate": Price(0.5, 1.5, 9_000.0),
        "cumsum": Price(0.8, 26.0),  # 9 to 26 ns where each step is in another page
        "exp": Price(21.0, 21.0),  # with subnormal results; with others 0.4 ns
        "gather_or": Price(25.0, 15.0, 60_000.0),
        "log": Price(9.0, 10.0),
        "log_softmax": Price(2.0, 60.0, 5_000.0),
        "mean": Price(0.4, 4.0, 10_000.0),
        "pad": Price(0.5, 8.0, 25_000.0),
        "parameter": Price(50.0, 50.0, 8_000.0),
        "power": Price(8.0, 20.0),
        "scatter_drop": Price(40.0, 60.0, 200_000.0),
        "sigmoid": Price(2.5, 8.0),
        "softmax": Price(2.0, 60.0, 5_000.0),
        "sqrt": Price(0.6, 1.6, 9_000.0),
        "std": Price(5.0, 80.0, 11_000.0),
        "tanh": Price(5.0, 6.0),
        "token_counts": Price(5.0, 5.0, 40_000.0),
        "token_mask": Price(5.0, 5.0, 40_000.0),
        "top_k": Price(11.0, 80.0, 100_000.0),
        "where": Price(2.5, 5.0),
    },
    others=Price(1.0, 9.0),
    byte=0.03,
    value=1_000.0,
)

# Of the numpy interpreter, for sessions and engines without torch. Rounded from measurements with numpy 2.3 and 151,936
# elements of float32 on one core with AVX-512, each for the slowest input: subnormal numbers in most cases.
_NUMPY_CALL = 50_000.0
_NUMPY_PLAIN = {
    "argsort": 6.0,  # of int64; of floats 2
    "cast": 10.0,
    "cumsum": 5.0,
    "divide": 11.0,
    "exp": 35.0,
    "gather_or": 15.0,
    "log_softmax": 35.0,
    "multiply": 10.0,
    "power": 170.0,
    "scatter_drop": 16.0,
    "sigmoid": 35.0,
    "softmax": 35.0,
    "sqrt": 14.0,
    "std": 5.0,
    "tanh": 20.0,
    "token_counts": 15.0,
    "token_mask": 15.0,
    "top_k": 6.0,
    "where": 9.0,
}
NUMPY = Prices(
    {name: Price(plain, max(plain, 50.0), _NUMPY_CALL) for name, plain in _NUMPY_PLAIN.items()},
    others=Price(3.0, 50.0, _NUMPY_CALL),
    byte=0.1,
    value=_NUMPY_CALL,
)


def milliseconds(verified: Verified, vocab_size: int, rows: int = 1, *, priced: Prices = TORCH) -> float:
    """The time of one core for a run of a program, for the worst values.

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
    operator = max(total, key=total.__getitem__)
    count = sum(value.operator == operator for value in verified.program.values)
    raise LimitExceeded(
        f"program {verified.program.name!r} may take {needed:.3g} ms of a core for a row of {vocab_size} logits; "
        f"the limit is {limit_ms:g} ms. Its {count} values of {operator!r} take {total[operator] / 1e6:.3g} ms: use "
        "fewer of them, or smaller ones"
    )


def _by_operator(verified: Verified, vocab_size: int, rows: int, priced: Prices) -> dict[str, float]:
    """Nanoseconds of the values of each operator."""
    values, types = verified.program.values, verified.types
    sizes = [verified.shape(index, 1, vocab_size)[kind.has_rows :] for index, kind in enumerate(types)]
    plain = _find_plain(values, sizes)
    total: defaultdict[str, float] = defaultdict(float)
    total["logits"] = rows * vocab_size * 4 * _PASSES * priced.byte
    for index, value in enumerate(values):
        operator, operands = value.operator, [*value.inputs, index]
        total[operator] += priced.value
        if operator in FREE:
            continue
        of_rows = sum(math.prod(sizes[one]) * _BYTES[types[one].element] for one in operands) * priced.byte
        if operator not in COPIES:
            price = priced.operators.get(operator, priced.others)
            of_unit = price.plain if all(plain[one] for one in operands) else price.strided
            of_rows += of_unit * _units(operator, [sizes[one] for one in operands])
            total[operator] += price.call * (len(value.inputs) if operator == "concatenate" else 1)
        total[operator] += of_rows * (rows if types[index].has_rows else 1)
    return total


def _units(operator: str, sizes: Sequence[tuple[int, ...]]) -> float:
    """Elements that are computed, for these sizes of the inputs and, at last, of the result."""
    if operator == "gather_or":
        return math.prod(sizes[-1])
    if operator == "scatter_drop":
        return math.prod(sizes[1])
    count = max(map(math.prod, sizes))
    return count * math.log2(max(2, sizes[0][-1])) if operator in _SORTS else count


def _find_plain(values: tuple[Value, ...], sizes: list[tuple[int, ...]]) -> list[bool]:
    """Whether each value is contiguous, with one axis at most."""
    found: list[bool] = []
    for value, own in zip(values, sizes, strict=True):
        is_view = value.operator in ("unsqueeze", "squeeze", "slice", "cast")
        view_of_other = is_view and not found[value.inputs[0]]
        found.append(len(own) <= 1 and value.operator != "expand" and not view_of_other)
    return found
