"""Lowers operators of torch that make, cut, join and index tensors."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from logitport_programs.capturing.elementwise import where
from logitport_programs.capturing.lowering import Arguments, Lowered, Lowering
from logitport_programs.capturing.reductions import taken
from logitport_programs.types import ONE, Element, Size

if TYPE_CHECKING:
    from collections.abc import Callable


def _shaped(low: Lowering, operand: Any) -> Lowered:
    """A tensor or number in the element type and shape of the result."""
    return low.expanded(low.cast(operand, low.meta.element), low.meta.rowed, low.meta.shape)


def _arange(low: Lowering, a: Arguments) -> Lowered:
    element, shape, rowed = low.meta
    if rowed:
        low.refuse("arange over the rows: a row must not depend on its position")
    result = low.cast(low.new(low.build.emit("arange", shape=shape), rowed=False), element)
    if a.get("step", 1) != 1:
        result = low.apply("multiply", result, a["step"], element=element)
    if "start" in a and a["start"] != 0:
        result = low.apply("add", result, a["start"], element=element)
    return result


def unsqueezed(low: Lowering, source: Lowered, dim: int) -> Lowered:
    """A dimension of size 1 more."""
    dim = dim + source.rank + 1 if dim < 0 else dim
    if source.rowed and dim == 0:
        low.refuse("rows would no longer be dimension 0: write x[:, None]")
    return Lowered(low.build.emit("unsqueeze", source.value, axis=source.rank + 1 - dim), source.rank + 1, source.rowed)


def _slice(low: Lowering, a: Arguments) -> Lowered:
    source: Lowered = a["self"]
    dim = _not_negative(source, a["dim"])
    if source.rowed and dim == 0:
        if not low.meta.rowed or a["step"] != 1:
            low.refuse("a slice selects rows: compute all rows")
        return source
    if a["step"] != 1:
        low.refuse("a slice with a step")
    begin = _begin(low, source, dim, a["start"])
    return sliced(low, source, dim, begin, begin.plus(low.meta.shape[dim - source.rowed]))


def _not_negative(source: Lowered, dim: int) -> int:
    return dim + source.rank if dim < 0 else dim


def sliced(low: Lowering, source: Lowered, dim: int, begin: Size, end: Size) -> Lowered:
    """Elements of a dimension."""
    if begin == Size() and end == low.type_of(source).shape[dim - source.rowed]:
        return source
    value = low.build.emit("slice", source.value, axis=low.axis(source, dim), begin=begin, end=end)
    return low.like(source, value)


def _begin(low: Lowering, source: Lowered, dim: int, start: Any) -> Size:
    size = low.type_of(source).shape[dim - source.rowed]
    begin = low.size(0 if start is None else start)
    if begin.vocab < 0 or (begin.vocab == 0 and begin.constant < 0):
        begin = size.plus(begin)
        begin = Size() if begin.vocab == 0 and begin.constant < 0 else begin
    return begin


def _select(low: Lowering, a: Arguments) -> Lowered:
    source: Lowered = a["self"]
    dim = _not_negative(source, a["dim"])
    if source.rowed and dim == 0:
        low.refuse("an index selects one row: compute all rows")
    begin = _begin(low, source, dim, a["index"])
    part = sliced(low, source, dim, begin, begin.plus(ONE))
    return Lowered(low.build.emit("squeeze", part.value, axis=low.axis(part, dim)), part.rank - 1, part.rowed)


def _slice_scatter(low: Lowering, a: Arguments) -> Lowered:
    source, part = a["self"], low.cast(a["src"], low.meta.element)
    dim = _not_negative(source, a["dim"])
    if source.rowed and dim == 0:
        if low.type_of(part).shape != low.type_of(source).shape or not part.rowed or a["step"] != 1:
            low.refuse("an assignment to some of the rows: compute all rows")
        return part
    if a["step"] != 1:
        low.refuse("a slice with a step")
    return _replaced(low, source, part, dim, _begin(low, source, dim, a["start"]))


def _select_scatter(low: Lowering, a: Arguments) -> Lowered:
    source = a["self"]
    dim = _not_negative(source, a["dim"])
    if source.rowed and dim == 0:
        low.refuse("an assignment to one row: compute all rows")
    part = unsqueezed(low, low.cast(a["src"], low.meta.element), dim)
    return _replaced(low, source, part, dim, _begin(low, source, dim, a["index"]))


def _replaced(low: Lowering, source: Lowered, part: Lowered, dim: int, begin: Size) -> Lowered:
    """The tensor with other elements from `begin` on."""
    position = dim - source.rowed
    size = low.type_of(source).shape[position]
    end = begin.plus(low.type_of(part).shape[position])
    parts = [sliced(low, source, dim, Size(), begin)] if begin != Size() else []
    parts.append(part)
    parts += [sliced(low, source, dim, end, size)] if end != size else []
    return _joined(low, parts, dim)


def _cat(low: Lowering, a: Arguments, *, stacked: bool) -> Lowered:
    parts = [low.cast(part, low.meta.element) for part in a["tensors"]]
    if stacked:
        parts = [unsqueezed(low, part, a["dim"]) for part in parts]
    return _joined(low, parts, a["dim"])


def _joined(low: Lowering, parts: list[Lowered], dim: int) -> Lowered:
    if len(parts) == 1:
        return parts[0]
    axis = low.axis(parts[0], dim)
    return low.like(parts[0], low.build.emit("concatenate", *(part.value for part in parts), axis=axis))


def _pad(low: Lowering, a: Arguments) -> Lowered:
    """Pairs of widths, the one of the last dimension first."""
    source: Lowered = a["self"]
    if a.get("mode", "constant") != "constant":
        low.refuse(f"pad with the mode {a['mode']!r}: only 'constant' is captured")
    widths = [low.size(width) for width in a["pad"]]
    if any(width.vocab < 0 or width.constant < 0 for width in widths):
        low.refuse("pad with a negative width: write a slice")
    number = a["value"] or 0
    value = source.value
    for position, (begin, end) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        if begin == end == Size():
            continue
        low.dim(source, -1 - position)  # not the rows
        filled: dict[str, Any] = {"number": float(number)} if low.meta.element.is_float else {"integer": int(number)}
        value = low.build.emit("pad", value, axis=position + 1, begin=begin, end=end, **filled)
    return low.like(source, value)


def _flip(low: Lowering, a: Arguments) -> Lowered:
    source: Lowered = a["self"]
    if len(a["dims"]) != 1 or low.axis(source, a["dims"][0]) != 1:
        low.refuse("a flip of a dimension that is not the last one")
    order = low.build.emit("arange", shape=low.type_of(source).shape[-1:])
    last = low.build.emit("amax", order, axis=1, flag=True)
    indices = low.build.emit("subtract", last, order)
    return low.like(source, low.build.emit("gather_or", source.value, indices))


# Indices that are tensors


def _gather(low: Lowering, a: Arguments) -> Lowered:
    low.check_last(a["self"], a["dim"], "gather")
    return taken(low, a["self"], a["index"])


def _scatter(low: Lowering, a: Arguments) -> Lowered:
    source, index = a["self"], a["index"]
    if a.get("reduce") is not None:
        low.refuse("scatter with reduce: use history.token_counts(), or multiply a mask")
    low.check_last(source, a["dim"], "scatter")
    if source.rowed != index.rowed:
        low.refuse("indices and tensor must both have rows, or neither: write index.expand(logits.shape[0], -1)")
    return _scattered(low, source, index, a["src"] if "src" in a else a["value"])


def _scattered(low: Lowering, source: Lowered, index: Lowered, src: Any) -> Lowered:
    added = low.cast(src, low.meta.element)
    value = low.aligned(added, source.rank, source.rowed)
    return low.like(source, low.build.emit("scatter_drop", source.value, index.value, value))


def _index(low: Lowering, a: Arguments) -> Lowered:
    source = a["self"]
    index = _one_index(low, source, a["indices"])
    wrapped = _wrapped(low, source, index)
    shape = low.type_of(wrapped).shape
    value = wrapped.value if shape else low.build.emit("unsqueeze", wrapped.value, axis=1)
    value = low.build.emit("gather_or", source.value, value)
    value = value if shape else low.build.emit("squeeze", value, axis=1)
    return low.new(value, rowed=low.meta.rowed)


def _index_put(low: Lowering, a: Arguments) -> Lowered:
    source, values = a["self"], a["values"]
    if a["accumulate"]:
        low.refuse("index_put with accumulate: multiply token_counts, or write a mask")
    mask = a["indices"][0]
    if len(a["indices"]) == 1 and mask is not None and low.type_of(mask).element is Element.BOOL:
        if values.rank:
            low.refuse("an assignment of several values at a mask: write torch.where(mask, values, logits)")
        while mask.rank < source.rank:
            mask = unsqueezed(low, mask, mask.rank)
        return where(low, mask, values, source, low.meta.element)
    index = _one_index(low, source, a["indices"])
    if index.rank != 1:
        low.refuse("an assignment at indices of several rows: write logits.scatter(-1, index, values)")
    return _scattered(low, source, _wrapped(low, source, index), values)


def _index_select(low: Lowering, a: Arguments) -> Lowered:
    source = a["self"]
    low.check_last(source, a["dim"], "index_select")
    return low.like(source, low.build.emit("gather_or", source.value, a["index"].value))


def _index_fill(low: Lowering, a: Arguments) -> Lowered:
    source = a["self"]
    low.check_last(source, a["dim"], "index_fill")
    return _scattered(low, source, _wrapped(low, source, a["index"]), a["value"])


def _isin(low: Lowering, a: Arguments) -> Lowered:
    elements, tested = a["elements"], a["test_elements"]
    if not isinstance(elements, Lowered) or low.build.values[elements.value].operator != "arange":
        low.refuse("isin of a tensor that is not torch.arange(size): compare with x[..., None] == ids, then any(-1)")
    if not isinstance(tested, Lowered):
        tested = low.scalar(tested, Element.INT64)
    if low.type_of(tested).element is not Element.INT64 or tested.rank > 1 or tested.rowed:
        low.refuse("isin with ids that are not int64[n]: flatten them, and convert them with .long()")
    index = tested.value if tested.rank else low.build.emit("unsqueeze", tested.value, axis=1)
    found, other = (low.build.full(Element.BOOL, flag) for flag in (not a["invert"], a["invert"]))
    base = low.build.expand(other, low.meta.shape)
    return low.like(elements, low.build.emit("scatter_drop", base, index, found))


def _one_index(low: Lowering, source: Lowered, indices: list[Lowered | None]) -> Lowered:
    """The only index of a tensor [n] or [rows, n], for its last dimension."""
    positions = [position for position, index in enumerate(indices) if index is not None]
    index = indices[positions[0]]
    if len(positions) != 1 or index is None:
        low.refuse("indices of several dimensions: write gather or scatter along dim=-1")
    if low.type_of(index).element is Element.BOOL:
        low.refuse("a mask selects elements, of which the number depends on values: write torch.where(mask, x, y)")
    if positions[0] != source.rank - 1 or (source.rowed and index.rowed):
        low.refuse("an index of rows: a program computes all rows; write gather along dim=-1")
    return index


def _wrapped(low: Lowering, source: Lowered, index: Lowered) -> Lowered:
    """Indices; negative ones count from the end, as in torch."""
    described = low.build.values[index.value]
    if described.operator == "constant" and min(struct.unpack(f"<{len(described.data) // 8}q", described.data)) >= 0:
        return index
    count = low.count(low.type_of(source).shape[-1])
    negative = low.combine("less", index, low.scalar(0, Element.INT64))
    return low.combine("where", negative, low.combine("add", index, count), index)


OPERATORS: dict[str, Callable[[Lowering, Arguments], Lowered]] = {
    **dict.fromkeys(("full", "full_like", "new_full"), lambda low, a: _shaped(low, a["fill_value"])),
    "scalar_tensor": lambda low, a: _shaped(low, a["s"]),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda low, _: _shaped(low, 0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda low, _: _shaped(low, 1)),
    "fill": lambda low, a: _shaped(low, a["value"]),
    "copy": lambda low, a: _shaped(low, a["src"]),
    "arange": _arange,
    **dict.fromkeys(("expand", "expand_as"), lambda low, a: low.expanded(a["self"], low.meta.rowed, low.meta.shape)),
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "view_copy", "squeeze", "flatten"),
        lambda low, a: low.reshaped(a["self"], low.meta.rowed, low.meta.shape),
    ),
    "unsqueeze": lambda low, a: unsqueezed(low, a["self"], a["dim"]),
    "slice": _slice,
    "select": _select,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "cat": partial(_cat, stacked=False),
    "stack": partial(_cat, stacked=True),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    "flip": _flip,
    "gather": _gather,
    "scatter": _scatter,
    "index": _index,
    "index_put": _index_put,
    "index_select": _index_select,
    "index_fill": _index_fill,
    "isin": _isin,
}
