"""Work of each value of a program, for logits of one width: by shape arithmetic alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.types import Element

if TYPE_CHECKING:
    from logitport.programs.program import Value
    from logitport.programs.verifier import Verified

FLOATS = ("float32", "float16", "bfloat16")
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1}
SORTS = frozenset({"argsort", "top_k"})
# Written again in each run, from histories and parameters.
FILLED = ("parameter", "history", "token_mask", "token_counts")
# Results without a computation of their own. The runtime has most of them as views of their inputs.
FREE = frozenset({"logits", "full", "unsqueeze", "squeeze", "slice", "expand", "history_length"})
_COPIES = frozenset({"constant", "arange"})


class Work(NamedTuple):
    """Work of one value.

    Attributes:
        key: the price that applies, see `key_of`; "" if only memory is read and written.
        units: elements, of sorts times the logarithm of the size of the axis.
        bytes: read and written.
        calls: number of functions that are called.
        has_rows: whether units and bytes are those of one row; otherwise they are those of a call.
    """

    key: str
    units: float
    bytes: int
    calls: int
    has_rows: bool


def key_of(operator: str, dtypes: tuple[str, ...], *, plain: bool) -> str:
    """The key of a price.

    Args:
        operator: its name.
        dtypes: of the elements that it reads; for `cast` also of its result.
        plain: whether inputs and result are contiguous, with one axis at most.
    """
    return ".".join((operator, *dtypes, "plain" if plain else "strided"))


def units_of(operator: str, inputs: list[tuple[int, ...]], result: tuple[int, ...]) -> float:
    """The number of units for inputs and a result of these sizes."""
    if operator == "gather_or":
        return float(math.prod(result))
    if operator == "scatter_drop":
        return float(math.prod(inputs[1]))
    count = float(max(math.prod(sizes) for sizes in (*inputs, result)))
    return count * math.log2(max(2, inputs[0][-1])) if operator in SORTS else count


def work_of(verified: Verified, vocab_size: int, dtype: str) -> list[Work]:
    """The work of each value, for one row of logits of this dtype. Raises as `Verified.shape`."""
    types, values = verified.types, verified.program.values
    sizes = [verified.shape(place, 1, vocab_size)[kind.has_rows :] for place, kind in enumerate(types)]
    dtypes = [_dtype(kind.element, dtype) for kind in types]
    plain = _find_plain(values, sizes)
    found = []
    for place, value in enumerate(values):
        operands = [*value.inputs, place]
        moved = sum(math.prod(sizes[one]) * BYTES[dtypes[one]] for one in operands)
        read = _read(value, dtypes, place)
        key, units, calls = "", 0.0, len(value.inputs) if value.operator == "concatenate" else 1
        if value.operator in FILLED:
            key, units = key_of(value.operator, (), plain=True), float(math.prod(sizes[place]))
        elif value.operator in FREE:
            moved = 0
        elif value.operator not in _COPIES:
            key = key_of(value.operator, read, plain=all(plain[one] for one in operands))
            units = units_of(value.operator, [sizes[one] for one in value.inputs], sizes[place])
        found.append(Work(key, units, moved, calls, types[place].has_rows))
    return found


def _read(value: Value, dtypes: list[str], place: int) -> tuple[str, ...]:
    if value.operator == "cast":
        return dtypes[value.inputs[0]], dtypes[place]
    if not value.inputs:
        return ()
    return (dtypes[value.inputs[value.operator == "where"]],)


def _find_plain(values: tuple[Value, ...], sizes: list[tuple[int, ...]]) -> list[bool]:
    """Whether each value is contiguous, with one axis at most."""
    found: list[bool] = []
    for value, own in zip(values, sizes, strict=True):
        is_view = value.operator in ("unsqueeze", "squeeze", "slice", "cast")
        view_of_other = is_view and not found[value.inputs[0]]
        found.append(len(own) <= 1 and value.operator != "expand" and not view_of_other)
    return found


def _dtype(element: Element, logits: str) -> str:
    return {Element.LOGITS: logits, Element.FLOAT32: "float32", Element.INT64: "int64", Element.BOOL: "bool"}[element]
