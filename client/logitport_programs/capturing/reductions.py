"""Lowers operators of torch that work along a dimension: reductions, softmax, sorts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logitport_programs.capturing.elementwise import where
from logitport_programs.capturing.lowering import Arguments, Lowered, Lowering
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable


def reduced(low: Lowering, operand: Lowered, a: Arguments, operator: str, **fields: Any) -> Lowered:
    """A reduction along the dimensions `dim`, or all of them."""
    dims, keep = a.get("dim"), bool(a.get("keepdim"))
    if dims is None or dims == []:
        if operand.rowed:
            low.refuse("a reduction of all elements mixes rows: set dim=-1")
        dims = list(range(operand.rank))
    dims = sorted(
        {low.dim(operand, one) for one in (dims if isinstance(dims, list | tuple) else [dims]) if operand.rank}
    )
    value, rank = operand.value, operand.rank
    for dim in reversed(dims):
        value = low.build.emit(operator, value, axis=rank - dim, flag=keep, **fields)
        rank -= not keep
    return Lowered(value, rank, operand.rowed)


def _numbers(low: Lowering, a: Arguments) -> Lowered:
    """The operand in the element type of the result, which is int64 for sums of bools."""
    return low.cast(a["self"], low.meta.element)


def _nansum(low: Lowering, a: Arguments) -> Lowered:
    source = _numbers(low, a)
    return reduced(low, where(low, low.combine("is_nan", source), 0.0, source, low.meta.element), a, "sum")


def _extreme(low: Lowering, a: Arguments, operator: str) -> Lowered | tuple[Lowered, ...]:
    if "other" in a:
        binary = "maximum" if operator == "amax" else "minimum"
        return low.apply(binary, a["self"], a["other"], element=low.meta.element)
    result = _amax(low, a, operator)
    return (result, _arg(low, a, operator)) if isinstance(a.get("dim"), int) else result


def _amax(low: Lowering, a: Arguments, operator: str) -> Lowered:
    return low.cast(reduced(low, _orderable(low, a["self"]), a, operator), low.meta.element)


def _arg(low: Lowering, a: Arguments, operator: str) -> Lowered:
    source = _orderable(low, a["self"])
    if a.get("dim") is None and source.rank > 1:
        low.refuse("argmax of all elements: set dim=-1")
    return reduced(low, source if operator == "amax" else low.combine("negate", source), a, "argmax")


def _truths(low: Lowering, a: Arguments) -> Lowered:
    """1 where the operand is not 0."""
    return low.cast(low.cast(a["self"], Element.BOOL), Element.INT64)


def _any(low: Lowering, a: Arguments, operator: str) -> Lowered:
    return low.cast(reduced(low, _truths(low, a), a, operator), Element.BOOL)


def _std(low: Lowering, a: Arguments, *, variance: bool) -> Lowered:
    correction = a.get("correction", 1 if a.get("unbiased", True) else 0)
    correction = 1 if correction is None else correction
    if correction not in (0, 1):
        low.refuse(f"the correction of a standard deviation is 0 or 1, not {correction}")
    result = reduced(low, a["self"], a, "std", integer=int(correction))
    return low.combine("multiply", result, result) if variance else result


def _logsumexp(low: Lowering, a: Arguments) -> Lowered:
    """In float32, as torch."""
    source = low.cast(a["self"], Element.FLOAT32)
    dims = a["dim"]
    if len(dims) != 1:
        low.refuse("logsumexp along several dimensions")
    kept = {"dim": dims, "keepdim": True}
    highest = reduced(low, source, kept, "amax")
    infinite = low.apply("equal", low.combine("absolute", highest), math.inf, element=Element.FLOAT32)
    shift = where(low, infinite, 0.0, highest, Element.FLOAT32)
    total = reduced(low, low.combine("exp", low.combine("subtract", source, shift)), kept, "sum")
    result = low.combine("add", low.combine("log", total), shift)
    if not a["keepdim"]:
        result = Lowered(
            low.build.emit("squeeze", result.value, axis=low.axis(result, dims[0])), result.rank - 1, result.rowed
        )
    return low.cast(result, low.meta.element)


def _along(low: Lowering, a: Arguments, operator: str) -> Lowered:
    source = _numbers(low, a)
    return low.like(source, low.build.emit(operator, source.value, axis=low.axis(source, a["dim"])))


def _sort(low: Lowering, a: Arguments) -> tuple[Lowered, Lowered]:
    indices = _argsort(low, a)
    return taken(low, a["self"], indices), indices


def _argsort(low: Lowering, a: Arguments) -> Lowered:
    source: Lowered = a["self"]
    low.check_last(source, a["dim"], "a sort")
    return low.like(source, low.build.emit("argsort", source.value, flag=bool(a["descending"])))


def _topk(low: Lowering, a: Arguments) -> tuple[Lowered, Lowered]:
    source: Lowered = a["self"]
    low.check_last(source, a["dim"], "a sort")
    size = low.size(a["k"])
    if size.vocab:
        low.refuse(
            f"topk of {size} elements: k must be a constant (for a k of each request, compare with sorted logits)"
        )
    ordered = source if a["largest"] else low.combine("negate", source)
    indices = low.like(source, low.build.emit("top_k", ordered.value, integer=size.constant))
    return taken(low, source, indices), indices


def taken(low: Lowering, source: Lowered, indices: Lowered) -> Lowered:
    """The elements of the last dimension at indices."""
    if source.rowed != indices.rowed:
        low.refuse("indices and tensor must both have rows, or neither: write x.expand(logits.shape[0], -1)")
    return low.like(indices, low.build.emit("gather_or", source.value, indices.value))


def _orderable(low: Lowering, operand: Lowered) -> Lowered:
    """Bools as integers, which have an order."""
    return low.cast(operand, Element.INT64) if low.type_of(operand).element is Element.BOOL else operand


def _bind(function: Callable[..., Any], *more: object, **named: object) -> Callable[[Lowering, Arguments], Any]:
    return lambda low, a: function(low, a, *more, **named)


OPERATORS: dict[str, Callable[[Lowering, Arguments], Lowered | tuple[Lowered, ...]]] = {
    "sum": lambda low, a: reduced(low, _numbers(low, a), a, "sum"),
    "nansum": _nansum,
    "mean": lambda low, a: reduced(low, _numbers(low, a), a, "mean"),
    "max": _bind(_extreme, "amax"),
    "min": _bind(_extreme, "amin"),
    "amax": _bind(_amax, "amax"),
    "amin": _bind(_amax, "amin"),
    "argmax": _bind(_arg, "amax"),
    "argmin": _bind(_arg, "amin"),
    "any": _bind(_any, "amax"),
    "all": _bind(_any, "amin"),
    "count_nonzero": lambda low, a: reduced(low, _truths(low, a), a, "sum"),
    "std": _bind(_std, variance=False),
    "var": _bind(_std, variance=True),
    "logsumexp": _logsumexp,
    **dict.fromkeys(("softmax", "_softmax"), _bind(_along, "softmax")),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _bind(_along, "log_softmax")),
    "cumsum": _bind(_along, "cumsum"),
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
}
