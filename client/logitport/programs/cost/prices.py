"""Nanoseconds of operators on one core, for the inputs on which they are slow.

Those of torch are rounded from measurements with torch 2.13 on AMD EPYC processors with AVX-512, for subnormal numbers,
ties, ascending numbers, random indices and strided memory: each is that of the slowest input and dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.cost.work import SORTS

if TYPE_CHECKING:
    from collections.abc import Mapping


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

# Of the numpy interpreter, for engines without torch. For 151,936 elements on one core, numpy needed 11 to 14 ns an
# element for `softmax` and `cumsum`, and 65 ns for `exp` with subnormal results.
_NUMPY_CALL = 50_000.0
NUMPY = Prices(
    dict.fromkeys(SORTS, Price(500.0, 50.0, _NUMPY_CALL)),
    others=Price(50.0, 50.0, _NUMPY_CALL),
    byte=1.0,
    value=_NUMPY_CALL,
)
