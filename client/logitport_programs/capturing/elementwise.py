"""Lowers torch's elementwise operators."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from logitport_programs.capturing.lowering import Arguments, Lowered, Lowering, Operand
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable

_INF = math.inf
_UNARY = {
    **{name: name for name in ("exp", "log", "sqrt", "sigmoid", "tanh", "floor", "ceil")},
    "neg": "negate",
    "abs": "absolute",
}
_ARITHMETIC = {"mul": "multiply", "div": "divide", "true_divide": "divide", "maximum": "maximum", "minimum": "minimum"}
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_LOGICAL = {
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "__and__": "and",
    "__or__": "or",
    "__xor__": "xor",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}


def arithmetic(low: Lowering, operator: str, *operands: Operand) -> Lowered:
    """An arithmetic operator, in the element type of torch's result."""
    element = low.meta.element
    if element is Element.BOOL:
        names = {"multiply": "and", "add": "or", "maximum": "or", "minimum": "and"}
        if operator not in names:
            low.refuse(f"{operator} of bools: cast them with .float() or .long()")
        return low.apply(names[operator], *operands, element=element)
    # Torch computes with such a number in float32, and rounds the result.
    wide = element is Element.LOGITS and any(_is_inexact(low, operand) for operand in operands)
    result = low.apply(operator, *operands, element=Element.FLOAT32 if wide else element)
    return low.cast(result, element)


def where(low: Lowering, condition: Lowered, selected: Operand, other: Operand, element: Element) -> Lowered:
    """Elements of `selected` where the condition holds, else of `other`."""
    return low.combine("where", condition, low.cast(selected, element), low.cast(other, element))


def _is_inexact(low: Lowering, operand: Operand) -> bool:
    """Whether a number may differ between the dtypes of logits."""
    if isinstance(operand, Lowered):
        return operand.rank == 0 and low.type_of(operand).element is Element.FLOAT32
    if not isinstance(operand, float | int) or not math.isfinite(operand):
        return False
    with np.errstate(over="ignore"):
        half = float(np.float16(operand))
    bits = struct.pack("<f", operand) if abs(operand) < 1e38 else b"\1"
    return half != operand or bits[:2] != b"\0\0"  # bfloat16 is the upper half of float32


def _unary(low: Lowering, a: Arguments, operator: str) -> Lowered:
    return low.apply(operator, a["self"], element=low.meta.element)


def _scaled(low: Lowering, number: Operand, alpha: Operand) -> Operand:
    """The second operand of an addition, multiplied."""
    if alpha == 1 and not isinstance(alpha, Lowered):
        return number
    if not isinstance(number, Lowered) and not isinstance(alpha, Lowered):
        return number * alpha
    number = low.cast(number, low.meta.element)
    element = low.type_of(number).element
    return low.apply("multiply", number, alpha, element=low.meta.element if element is Element.BOOL else element)


def _binary(low: Lowering, a: Arguments, operator: str) -> Lowered:
    mode = a.get("rounding_mode")
    if mode is not None and not low.meta.element.is_float:
        low.refuse("a division of integers: divide floats, then cast")
    result = arithmetic(low, operator, a["self"], a["other"])
    if mode == "floor":
        return low.combine("floor", result)
    if mode == "trunc":
        negative = low.combine("less", result, low.scalar(0, low.meta.element))
        return low.combine("where", negative, low.combine("ceil", result), low.combine("floor", result))
    return result


def _compare(low: Lowering, a: Arguments, operator: str) -> Lowered:
    return low.apply(operator, a["self"], a["other"], element=low.promoted(a["self"], a["other"]))


def _logical(low: Lowering, a: Arguments, operator: str) -> Lowered:
    if low.meta.element is not Element.BOOL:
        low.refuse("an operator on the bits of integers, which programs lack")
    return low.apply(operator, a["self"], a["other"], element=Element.BOOL)


def _not(low: Lowering, a: Arguments) -> Lowered:
    if low.meta.element is not Element.BOOL:
        low.refuse("an operator on the bits of integers, which programs lack")
    return low.combine("not", low.cast(a["self"], Element.BOOL))


def _where(low: Lowering, a: Arguments) -> Lowered:
    if "self" not in a:
        low.refuse("where without values finds places, which depend on values: write torch.where(condition, x, y)")
    return where(low, a["condition"], a["self"], a["other"], low.meta.element)


def _clamp(low: Lowering, a: Arguments) -> Lowered:
    element = low.meta.element
    result = low.cast(a["self"], element)
    if a.get("min") is not None:
        result = low.apply("maximum", result, a["min"], element=element)
    if a.get("max") is not None:
        result = low.apply("minimum", result, a["max"], element=element)
    return result


def _pow(low: Lowering, a: Arguments) -> Lowered:
    base, exponent = a["self"], a["exponent"]
    if not isinstance(exponent, Lowered) and exponent == 2:
        return arithmetic(low, "multiply", base, base)
    if not isinstance(exponent, Lowered) and exponent == 0.5:
        return _unary(low, a, "sqrt")
    if not low.meta.element.is_float:
        low.refuse("a power of integers: cast with .float()")
    return arithmetic(low, "power", base, exponent)


def _sign(low: Lowering, a: Arguments) -> Lowered:
    element = low.meta.element
    source, zero = low.cast(a["self"], element), low.scalar(0, element)
    below = where(low, low.combine("less", source, zero), -1, source, element)
    return where(low, low.combine("greater", source, zero), 1, below, element)


def _entr(low: Lowering, a: Arguments) -> Lowered:
    """-x log x; 0 for 0, and -inf below."""
    element = low.meta.element
    source, zero = low.cast(a["self"], element), low.scalar(0, element)
    product = low.combine("negate", low.combine("multiply", source, low.combine("log", source)))
    defined = where(low, low.combine("equal", source, zero), 0.0, product, element)
    return where(low, low.combine("less", source, zero), -_INF, defined, element)


def _xlogy(low: Lowering, a: Arguments) -> Lowered:
    """X log y; 0 where x is 0 and y is no NaN."""
    element = low.meta.element
    first, second = low.cast(a["self"], element), low.cast(a["other"], element)
    product = low.combine("multiply", first, low.combine("log", second))
    is_zero = low.combine("equal", first, low.scalar(0, element))
    defined = where(low, is_zero, 0.0, product, element)
    return where(low, low.combine("is_nan", second), second, defined, element)


def _compared(low: Lowering, source: Lowered, operator: str, number: float) -> Lowered:
    return low.apply(operator, source, number, element=low.type_of(source).element)


def _nan_to_num(low: Lowering, a: Arguments) -> Lowered:
    element, source = low.meta.element, a["self"]
    highest = float(np.finfo(np.float32).max)
    if element is Element.LOGITS and (a["posinf"] is None or a["neginf"] is None):
        low.refuse("nan_to_num replaces infinities by a number that depends on the dtype: set posinf and neginf")
    for infinity, number in ((_INF, a["posinf"]), (-_INF, a["neginf"])):
        replacement = math.copysign(highest, infinity) if number is None else number
        source = where(low, low.apply("equal", source, infinity, element=element), replacement, source, element)
    return where(low, low.combine("is_nan", source), a["nan"] or 0.0, source, element)


def _bind(function: Callable[..., Lowered], *more: object) -> Callable[[Lowering, Arguments], Lowered]:
    return lambda low, a: function(low, a, *more)


OPERATORS: dict[str, Callable[[Lowering, Arguments], Lowered]] = {
    **{name: _bind(_unary, operator) for name, operator in _UNARY.items()},
    **{name: _bind(_binary, operator) for name, operator in _ARITHMETIC.items()},
    **{name: _bind(_compare, operator) for name, operator in _COMPARISONS.items()},
    **{name: _bind(_logical, operator) for name, operator in _LOGICAL.items()},
    "add": lambda low, a: arithmetic(low, "add", a["self"], _scaled(low, a["other"], a["alpha"])),
    "sub": lambda low, a: arithmetic(low, "subtract", a["self"], _scaled(low, a["other"], a["alpha"])),
    "rsub": lambda low, a: arithmetic(low, "subtract", a["other"], _scaled(low, a["self"], a["alpha"])),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    "where": _where,
    "masked_fill": lambda low, a: where(low, a["mask"], a["value"], a["self"], low.meta.element),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    "pow": _pow,
    "square": lambda low, a: arithmetic(low, "multiply", a["self"], a["self"]),
    "reciprocal": lambda low, a: arithmetic(low, "divide", 1.0, a["self"]),
    "rsqrt": lambda low, a: arithmetic(low, "divide", 1.0, _unary(low, a, "sqrt")),
    "log2": lambda low, a: arithmetic(low, "divide", _unary(low, a, "log"), math.log(2)),
    "relu": lambda low, a: low.apply("maximum", a["self"], 0, element=low.meta.element),
    **dict.fromkeys(("sign", "sgn"), _sign),
    "special_entr": _entr,
    **dict.fromkeys(("xlogy", "special_xlogy"), _xlogy),
    "isnan": lambda low, a: low.combine("is_nan", a["self"]),
    "isinf": lambda low, a: _compared(low, low.combine("absolute", a["self"]), "equal", _INF),
    "isfinite": lambda low, a: _compared(low, low.combine("absolute", a["self"]), "less", _INF),
    "isposinf": lambda low, a: _compared(low, a["self"], "equal", _INF),
    "isneginf": lambda low, a: _compared(low, a["self"], "equal", -_INF),
    "nan_to_num": _nan_to_num,
    **dict.fromkeys(
        ("clone", "_to_copy", "to", "alias", "detach", "lift_fresh_copy", "contiguous"),
        lambda low, a: low.cast(a["self"], low.meta.element),
    ),
}
