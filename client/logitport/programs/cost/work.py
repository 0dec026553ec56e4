"""Work of each value of a program, for logits of one width: by shape arithmetic alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.types import Element

if TYPE_CHECKING:
    from logitport.programs.program import Value
    from logitport.programs.verifier import Verified

# Logits count as float32, their longest type.
_BYTES = {Element.LOGITS: 4, Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}
SORTS = frozenset({"argsort", "top_k"})
# Written again in each run, from histories and parameters.
_FILLED = ("parameter", "history", "token_mask", "token_counts")
# Results without a computation of their own. The runtime has most of them as views of their inputs.
_FREE = frozenset({"logits", "full", "unsqueeze", "squeeze", "slice", "expand", "history_length"})
_COPIES = frozenset({"constant", "arange"})


class Work(NamedTuple):
    """Work of one value.

    Attributes:
        operator: the one with the price that applies; "" if only memory is read and written.
        plain: whether inputs and result are contiguous, with one axis at most.
        units: elements, of sorts times the logarithm of the size of the axis.
        bytes: read and written.
        calls: number of functions that are called.
        has_rows: whether units and bytes are those of one row; otherwise they are those of a call.
    """

    operator: str
    plain: bool
    units: float
    bytes: int
    calls: int
    has_rows: bool


def _units(operator: str, inputs: list[tuple[int, ...]], result: tuple[int, ...]) -> float:
    """The number of units for inputs and a result of these sizes."""
    if operator == "gather_or":
        return float(math.prod(result))
    if operator == "scatter_drop":
        return float(math.prod(inputs[1]))
    count = float(max(math.prod(sizes) for sizes in (*inputs, result)))
    return count * math.log2(max(2, inputs[0][-1])) if operator in SORTS else count


def work_of(verified: Verified, vocab_size: int) -> list[Work]:
    """The work of each value, for one row of logits. Raises as `Verified.shape`."""
    types, values = verified.types, verified.program.values
    sizes = [verified.shape(place, 1, vocab_size)[kind.has_rows :] for place, kind in enumerate(types)]
    plain = _find_plain(values, sizes)
    found = []
    for place, value in enumerate(values):
        operands = [*value.inputs, place]
        moved = sum(math.prod(sizes[one]) * _BYTES[types[one].element] for one in operands)
        operator, units, calls = value.operator, 0.0, len(value.inputs) if value.operator == "concatenate" else 1
        if operator in _FILLED:
            units = float(math.prod(sizes[place]))
        elif operator in _FREE:
            operator, moved = "", 0
        elif operator in _COPIES:
            operator = ""
        else:
            units = _units(operator, [sizes[one] for one in value.inputs], sizes[place])
        is_plain = all(plain[one] for one in operands)
        found.append(Work(operator, is_plain, units, moved, calls, types[place].has_rows))
    return found


def _find_plain(values: tuple[Value, ...], sizes: list[tuple[int, ...]]) -> list[bool]:
    """Whether each value is contiguous, with one axis at most."""
    found: list[bool] = []
    for value, own in zip(values, sizes, strict=True):
        is_view = value.operator in ("unsqueeze", "squeeze", "slice", "cast")
        view_of_other = is_view and not found[value.inputs[0]]
        found.append(len(own) <= 1 and value.operator != "expand" and not view_of_other)
    return found
