"""Requirements of each operator for its inputs, and the type of its result. docs/programs-spec.md describes the values.

Rows never mix: a value either has a leading dimension of rows or is the same for all rows, every operator works within
a row, and no operator has an axis that is the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.rules import axes, elementwise, layout, sources
from logitport.programs.rules.axes import MAX_TOP_K
from logitport.programs.rules.checks import Context
from logitport.programs.rules.layout import check_sizes
from logitport.programs.types import Element, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.programs.program import Value

__all__ = ["HISTORY_OPERATORS", "MAX_TOP_K", "OPERATORS", "Context", "Operator", "check_sizes"]


class Operator(NamedTuple):
    """An operator.

    Attributes:
        inputs: the number of its inputs; None for one or more.
        fields: the fields of `Value` that it uses, besides `operator` and `inputs`.
        rule: returns the type of the result, or raises InvalidArgument.
    """

    inputs: int | None
    fields: frozenset[str]
    rule: Callable[[Value, Sequence[Type], Context], Type]


# Those that read the histories of requests.
HISTORY_OPERATORS = frozenset({"history", "history_length", "token_mask", "token_counts"})

_FLOATS = (Element.LOGITS, Element.FLOAT32)
_NUMBERS = (*_FLOATS, Element.INT64)


def _operators() -> dict[str, Operator]:
    none: frozenset[str] = frozenset()
    reduction = frozenset({"axis", "flag"})
    table = {
        "logits": Operator(0, none, sources.logits),
        "parameter": Operator(0, frozenset({"parameter"}), sources.parameter),
        "history": Operator(0, none, sources.history),
        "history_length": Operator(0, none, sources.history_length),
        "token_mask": Operator(0, frozenset({"flag"}), sources.token_mask),
        "token_counts": Operator(0, frozenset({"flag"}), sources.token_counts),
        "constant": Operator(0, frozenset({"element", "shape", "data"}), sources.constant),
        "full": Operator(0, frozenset({"element", "shape", "number", "integer"}), sources.full),
        "arange": Operator(0, frozenset({"shape"}), sources.arange),
        "cast": Operator(1, frozenset({"element"}), elementwise.cast),
        "not": Operator(1, none, elementwise.of(Element.BOOL)),
        "is_nan": Operator(1, none, elementwise.is_nan),
        "where": Operator(3, none, elementwise.where),
        "sum": Operator(1, reduction, axes.reduce),
        "mean": Operator(1, reduction, axes.mean),
        "std": Operator(1, reduction | {"integer"}, axes.std),
        "argmax": Operator(1, reduction, axes.argmax),
        "softmax": Operator(1, frozenset({"axis"}), axes.softmax),
        "log_softmax": Operator(1, frozenset({"axis"}), axes.softmax),
        "cumsum": Operator(1, frozenset({"axis"}), axes.cumsum),
        "argsort": Operator(1, frozenset({"flag"}), axes.argsort),
        "top_k": Operator(1, frozenset({"integer"}), axes.top_k),
        "expand": Operator(1, frozenset({"shape"}), layout.expand),
        "unsqueeze": Operator(1, frozenset({"axis"}), layout.unsqueeze),
        "squeeze": Operator(1, frozenset({"axis"}), layout.squeeze),
        "slice": Operator(1, frozenset({"axis", "begin", "end"}), layout.slicing),
        "pad": Operator(1, frozenset({"axis", "begin", "end", "number", "integer"}), layout.pad),
        "concatenate": Operator(None, frozenset({"axis"}), layout.concatenate),
        "gather_or": Operator(2, frozenset({"number", "integer"}), layout.gather),
        "scatter_drop": Operator(3, none, layout.scatter),
    }
    table |= dict.fromkeys(("amax", "amin"), Operator(1, reduction, axes.reduce))
    table |= dict.fromkeys(
        ("exp", "log", "sqrt", "sigmoid", "tanh", "floor", "ceil"), Operator(1, none, elementwise.of(*_FLOATS))
    )
    table |= dict.fromkeys(("negate", "absolute"), Operator(1, none, elementwise.of(*_NUMBERS)))
    binary = ("add", "subtract", "multiply", "minimum", "maximum")
    table |= dict.fromkeys(binary, Operator(2, none, elementwise.of(*_NUMBERS)))
    table |= dict.fromkeys(("divide", "power"), Operator(2, none, elementwise.of(*_FLOATS)))
    comparisons = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    table |= dict.fromkeys(comparisons, Operator(2, none, elementwise.compare))
    return table | dict.fromkeys(("and", "or", "xor"), Operator(2, none, elementwise.of(Element.BOOL)))


OPERATORS: Mapping[str, Operator] = _operators()
