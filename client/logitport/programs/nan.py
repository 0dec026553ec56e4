"""Which values of a program can be NaN, and an interval for each value, by operators alone.

The intervals are those of all elements of a value, and need not be tight. Infinite limits mean that infinities occur.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport.programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.programs.program import Parameter, Value
    from logitport.programs.types import Type
    from logitport.programs.verifier import Verified

_INT64 = 2.0**63
_INT32 = 2.0**31
# Largest number, and smallest normal number. Smaller ones may be flushed to zero.
_FLOAT32_LIMITS = (float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny))
_LIMITS = {"float32": _FLOAT32_LIMITS, "bfloat16": (3.3895e38, _FLOAT32_LIMITS[1]), "float16": (65504.0, 2.0**-14)}
_NUMPY = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}


class Fact(NamedTuple):
    """Facts about the elements of a value.

    Attributes:
        nan: whether an element may be NaN.
        low, high: limits of all elements that are not NaN.
    """

    nan: bool
    low: float
    high: float

    @property
    def has_infinity(self) -> bool:
        """Whether an element may be infinite."""
        return math.isinf(self.low) or math.isinf(self.high)

    @property
    def has_zero(self) -> bool:
        """Whether an element may be zero."""
        return self.low <= 0 <= self.high

    def join(self, other: Fact) -> Fact:
        """Return the facts that hold for the elements of either value."""
        return Fact(self.nan or other.nan, min(self.low, other.low), max(self.high, other.high))


ANY = Fact(nan=False, low=-math.inf, high=math.inf)
ANY_OR_NAN = ANY._replace(nan=True)
_BOOL = Fact(nan=False, low=0, high=1)


def facts(verified: Verified, shapes: Sequence[tuple[int, ...]], dtype: str, *, logits: Fact = ANY) -> list[Fact]:
    """Analyze a program.

    Args:
        verified: the program.
        shapes: the shape of each value, with its rows.
        dtype: of the logits: "float32", "float16" or "bfloat16".
        logits: facts of the logits: `ANY` for those without NaN, or `ANY_OR_NAN`.

    Returns:
        A fact for each value.
    """
    parameters = {parameter.name: parameter for parameter in verified.program.parameters}
    found: list[Fact] = []
    for value, kind, shape in zip(verified.program.values, verified.types, shapes, strict=True):
        inputs = [found[place] for place in value.inputs]
        axes = shapes[value.inputs[0]] if value.inputs else ()
        size = axes[-value.axis] if 0 < value.axis <= len(axes) else 1
        fact = logits if value.operator == "logits" else _fact(value, kind, inputs, shape, size, parameters)
        found.append(_rounded(fact, kind.element, dtype))
    return found


def fits_int64(fact: Fact) -> bool:
    """Whether int64 can hold each element."""
    return not fact.nan and fact.low >= -_INT64 and fact.high < _INT64


def _fact(
    value: Value,
    kind: Type,
    inputs: Sequence[Fact],
    shape: tuple[int, ...],
    size: int,
    parameters: dict[str, Parameter],
) -> Fact:
    if not inputs:
        return _source(value, kind, shape, parameters)
    if kind.element is Element.BOOL:
        return _BOOL
    if value.operator in ("argmax", "argsort", "top_k"):
        return Fact(nan=False, low=0, high=_INT32)
    if value.operator in ("sum", "mean", "std", "cumsum"):
        return _accumulated(value, kind, inputs[0], size)
    if value.operator in ("pad", "gather_or"):
        fill = float(value.number if kind.element.is_float else value.integer)
        return inputs[0].join(Fact(nan=False, low=fill, high=fill))
    if value.operator == "scatter_drop":
        return inputs[0].join(inputs[2])
    if value.operator == "where":
        return inputs[1].join(inputs[2])
    if value.operator == "cast" and kind.element is Element.INT64:  # an element that does not fit becomes 0
        return Fact(nan=False, low=min(0, inputs[0].low), high=max(0, inputs[0].high))
    rule = _RULES.get(value.operator)
    if rule is None:  # the elements of the inputs, in other places
        return reduce(Fact.join, inputs)
    low, high, invalid = rule(*inputs)
    return Fact(invalid or any(each.nan for each in inputs), low, high)


def _source(value: Value, kind: Type, shape: tuple[int, ...], parameters: dict[str, Parameter]) -> Fact:
    operator = value.operator
    if kind.element is Element.BOOL:
        return _BOOL
    if operator == "parameter":
        parameter = parameters[value.parameter]
        low = -1 if parameter.length else parameter.minimum  # a list is padded
        return Fact(nan=False, low=low, high=parameter.maximum)
    if operator == "constant":
        data = np.frombuffer(value.data, _NUMPY[kind.element]).astype(np.float64)
        numbers = data[~np.isnan(data)]
        has_nan = len(numbers) < len(data)
        return Fact(has_nan, numbers.min(initial=math.inf), numbers.max(initial=-math.inf)) if len(numbers) else ANY
    if operator == "full":
        number = float(value.number if kind.element.is_float else value.integer)
        return Fact(nan=False, low=number, high=number)
    if operator == "arange":
        return Fact(nan=False, low=0, high=shape[0] - 1)
    return Fact(nan=False, low=-_INT32 if operator == "history" else 0, high=_INT32)


def _accumulated(value: Value, kind: Type, source: Fact, size: int) -> Fact:
    """Sums, accumulated in float32, of which any part may overflow."""
    low, high = min(source.low * size, source.low), max(source.high * size, source.high)
    if not kind.element.is_float:
        return Fact(nan=False, low=low, high=high)
    overflows_low, overflows_high = (abs(limit) >= _FLOAT32_LIMITS[0] / 2 for limit in (min(low, 0), max(high, 0)))
    if value.operator == "std":
        invalid = overflows_low or overflows_high or size <= value.integer
        return Fact(source.nan or invalid, 0, math.inf)
    if value.operator == "mean":
        low, high = (0 if low >= 0 else 2 * source.low), (0 if high <= 0 else 2 * source.high)
    return Fact(
        source.nan or (overflows_low and overflows_high),
        -math.inf if overflows_low else low,
        math.inf if overflows_high else high,
    )


def _add(one: Fact, other: Fact) -> tuple[float, float, bool]:
    opposite = (one.low == -math.inf and other.high == math.inf) or (one.high == math.inf and other.low == -math.inf)
    low = -math.inf if -math.inf in (one.low, other.low) else one.low + other.low
    high = math.inf if math.inf in (one.high, other.high) else one.high + other.high
    return low, high, opposite


def _negative(fact: Fact) -> Fact:
    return Fact(fact.nan, -fact.high, -fact.low)


def _multiply(one: Fact, other: Fact) -> tuple[float, float, bool]:
    invalid = (one.has_infinity and other.has_zero) or (other.has_infinity and one.has_zero)
    products = [x * y if x and y else 0.0 for x in (one.low, one.high) for y in (other.low, other.high)]
    return min(products), max(products), invalid


def _divide(one: Fact, other: Fact) -> tuple[float, float, bool]:
    invalid = (one.has_zero and other.has_zero) or (one.has_infinity and other.has_infinity)
    if other.has_zero:
        return -math.inf, math.inf, invalid
    quotients = [
        0.0 if math.isinf(y) else x / y if math.isfinite(x) else math.copysign(math.inf, x) * math.copysign(1, y)
        for x in (one.low, one.high)
        for y in (other.low, other.high)
    ]
    if other.has_infinity and one.has_infinity:
        return -math.inf, math.inf, invalid
    return min(quotients), max(quotients), invalid


def _power(base: Fact, _: Fact) -> tuple[float, float, bool]:
    return (-math.inf if base.low < 0 else 0), math.inf, base.low < 0


def _absolute(source: Fact) -> tuple[float, float, bool]:
    ends = abs(source.low), abs(source.high)
    return (0 if source.has_zero else min(ends)), max(ends), False


def _log(source: Fact) -> tuple[float, float, bool]:
    # Of float32 and bfloat16: log(1e-45) > -104, log(3.5e38) < 89.
    return (-math.inf if source.low <= 0 else -200), (math.inf if source.high == math.inf else 200), source.low < 0


def _sqrt(source: Fact) -> tuple[float, float, bool]:
    return math.sqrt(max(source.low, 0)), math.sqrt(max(source.high, 0)), source.low < 0


def _whole(function: Callable[[float], int]) -> Callable[[Fact], tuple[float, float, bool]]:
    def rule(source: Fact) -> tuple[float, float, bool]:
        low, high = (end if math.isinf(end) else float(function(end)) for end in (source.low, source.high))
        return low, high, False

    return rule


# The limits of the result, and whether it may be NaN although no input is.
_RULES: dict[str, Callable[..., tuple[float, float, bool]]] = {
    "add": _add,
    "subtract": lambda one, other: _add(one, _negative(other)),
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "minimum": lambda one, other: (min(one.low, other.low), min(one.high, other.high), False),
    "maximum": lambda one, other: (max(one.low, other.low), max(one.high, other.high), False),
    "negate": lambda source: (-source.high, -source.low, False),
    "absolute": _absolute,
    "exp": lambda source: (0, math.inf if source.high > 0 else 2, False),
    "log": _log,
    "sqrt": _sqrt,
    "sigmoid": lambda _: (0, 1, False),
    "tanh": lambda _: (-1, 1, False),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    # The largest element is subtracted: invalid if it is infinite.
    "softmax": lambda source: (0, 1, source.has_infinity),
    "log_softmax": lambda source: (-math.inf, 1, source.has_infinity),
}


def _rounded(fact: Fact, element: Element, dtype: str) -> Fact:
    """Limits as the element type has them."""
    low, high = fact.low, fact.high
    if element is Element.INT64:
        wraps = low < -_INT64 or high >= _INT64
        return Fact(nan=False, low=-_INT64, high=_INT64) if wraps else fact
    if element is Element.BOOL:
        return fact
    name = dtype if element is Element.LOGITS else "float32"
    largest, tiny = _LIMITS[name]
    low, high = _nearest(low, name), _nearest(high, name)
    if 0 < low < 2 * tiny:
        low = 0
    if -2 * tiny < high < 0:
        high = 0
    return Fact(fact.nan, -math.inf if low < -largest / 2 else low, math.inf if high > largest / 2 else high)


def _nearest(number: float, name: str) -> float:
    """Round to the nearest number of the type."""
    with np.errstate(over="ignore", under="ignore"):
        if name == "float16":
            return float(np.float16(number))
        single = np.float32(number)
        if name == "float32" or not np.isfinite(single):
            return float(single)
        bits = int(single.view(np.uint32))
        bits += 0x7FFF + ((bits >> 16) & 1)
        return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
