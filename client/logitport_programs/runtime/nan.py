"""Whether the result of a program can have NaN for logits without NaN, by its operators and its parameters' limits.

A search of the result reads all logits, and takes half as long as a temperature does. Most samplers need none.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.program import Parameter, Value
    from logitport_programs.verifier import Verified

# The largest number, and the smallest normal number: smaller ones may be flushed to zero.
_LIMITS = {"FP32": (3.4e38, 1.2e-38), "BF16": (3.38e38, 1.2e-38), "FP16": (65504.0, 2.0**-14)}


class _Fact(NamedTuple):
    """What holds for all elements of a value.

    Attributes:
        nan: whether an element may be NaN.
        least, most: limits of the absolute values that are not NaN. 0 and infinity occur if they are limits.
    """

    nan: bool
    least: float
    most: float

    def join(self, other: _Fact) -> _Fact:
        """Return what holds for the elements of either value."""
        return _Fact(self.nan or other.nan, min(self.least, other.least), max(self.most, other.most))


_ANY = _Fact(nan=False, least=0.0, most=math.inf)
_UNKNOWN = _ANY._replace(nan=True)
_WITHIN_ONE = _Fact(nan=False, least=0.0, most=1.0)
_INTEGER = _Fact(nan=False, least=0.0, most=2.0**63)


def may_be_nan(verified: Verified, datatype: str) -> bool:
    """Return whether the result may have NaN. True also where an operator has no rule here.

    `datatype` describes the logits: "FP32", "FP16" or "BF16".
    """
    parameters = {parameter.name: parameter for parameter in verified.program.parameters}
    found: list[_Fact] = []
    for value, kind in zip(verified.program.values, verified.types, strict=True):
        if kind.element is Element.BOOL:
            fact = _WITHIN_ONE
        elif value.inputs:
            fact = _computed(value, [found[index] for index in value.inputs])
        else:
            fact = _source(value, parameters)
        if kind.element is Element.INT64:  # it has no NaN, and its sums and products wrap around
            fact = _INTEGER
        elif kind.element.is_float:
            largest, smallest = _LIMITS[datatype if kind.element is Element.LOGITS else "FP32"]
            least = fact.least if fact.least > 2 * smallest else 0.0
            fact = _Fact(fact.nan, least, fact.most if fact.most < largest / 2 else math.inf)
        found.append(fact)
    return found[-1].nan


def _source(value: Value, parameters: dict[str, Parameter]) -> _Fact:
    if value.operator == "parameter":
        parameter = parameters[value.parameter]
        return _between(parameter.minimum, parameter.maximum)
    if value.operator == "full":
        return _between(value.number, value.number)
    if value.operator == "constant" and value.element is Element.FLOAT32:
        numbers = np.abs(np.frombuffer(value.data, "<f4"))
        if not numbers.size or np.isnan(numbers).any():
            return _UNKNOWN
        return _Fact(nan=False, least=float(numbers.min()), most=float(numbers.max()))
    return _ANY


def _computed(value: Value, inputs: Sequence[_Fact]) -> _Fact:
    first, other = inputs[0], inputs[-1]
    nan = any(each.nan for each in inputs)
    match value.operator:
        case "add" | "subtract":
            invalid = math.isinf(first.most) and math.isinf(other.most)
            return _Fact(nan or invalid, 0.0, first.most + other.most)
        case "multiply":
            invalid = _has_zero_times_infinity(first, other) or _has_zero_times_infinity(other, first)
            least, most = _product(first.least, other.least), _product(first.most, other.most)
            return _Fact(nan or invalid, least, most)
        case "divide":
            invalid = first.least == other.least == 0 or (math.isinf(first.most) and math.isinf(other.most))
            least, most = _quotient(first.least, other.most, 0.0), _quotient(first.most, other.least, math.inf)
            return _Fact(nan or invalid, least, most)
        case "exp":
            return _ANY._replace(nan=nan)
        case "sigmoid" | "tanh":
            return _WITHIN_ONE._replace(nan=nan)
        case "softmax" | "log_softmax":  # the largest element is subtracted
            return _ANY._replace(nan=nan or math.isinf(first.most))
        case "pad" | "gather_or":
            return first.join(_between(value.number, value.number))
        case "where":  # the first input is a condition
            return inputs[1].join(other)
        case "scatter_drop":  # the second input has indices
            return first.join(other)
        case "floor" | "ceil":
            return _Fact(nan, 0.0, first.most + 1)
        case "log" | "sqrt" | "power" | "sum" | "mean" | "std" | "cumsum":
            return _UNKNOWN
        case _:  # elements of the inputs, perhaps of the other sign: all other operators
            return reduce(_Fact.join, inputs)


def _has_zero_times_infinity(one: _Fact, other: _Fact) -> bool:
    return one.least == 0 and math.isinf(other.most)


def _product(one: float, other: float) -> float:
    return one * other if one and other else 0.0


def _quotient(one: float, other: float, otherwise: float) -> float:
    return one / other if other and math.isfinite(other) else otherwise


def _between(low: float, high: float) -> _Fact:
    """Return the fact of numbers within these limits."""
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return _Fact(math.isnan(low), least, max(abs(low), abs(high)))
