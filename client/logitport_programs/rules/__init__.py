"""Requirements of each operator for its inputs, and the type of its result. docs/programs-spec.md describes the values.

Rows never mix: a value either has a leading dimension of rows or is the same for all rows, every operator works within
a row, and no operator has an axis that is the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport_programs.rules import computing, layout
from logitport_programs.rules.common_checks import Context
from logitport_programs.rules.computing import MAX_TOP_K, elementwise, source
from logitport_programs.rules.layout import check_sizes
from logitport_programs.types import VOCAB, WINDOW, Element, Type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_programs.rules.computing import Rule

__all__ = ["ELEMENTWISE", "HISTORY_OPERATORS", "MAX_TOP_K", "OPERATORS", "Context", "Operator", "check_sizes"]


class Operator(NamedTuple):
    """An operator.

    Attributes:
        inputs: the number of its inputs; None for one or more.
        fields: the fields of `Value` that it uses, besides `operator` and `inputs`.
        rule: returns the type of the result, or raises InvalidArgument.
    """

    inputs: int | None
    fields: frozenset[str]
    rule: Rule


# Those that read the histories of requests.
HISTORY_OPERATORS = frozenset({"history", "history_length", "token_mask", "token_counts"})

_FLOATS = (Element.LOGITS, Element.FLOAT32)
_NUMBERS = (*_FLOATS, Element.INT64)
# Operators that compute each element alone, by what their inputs must be.
_ELEMENTWISE = (
    (("exp", "log", "sqrt", "sigmoid", "tanh", "floor", "ceil"), 1, elementwise(*_FLOATS)),
    (("negate", "absolute"), 1, elementwise(*_NUMBERS)),
    (("add", "subtract", "multiply", "minimum", "maximum"), 2, elementwise(*_NUMBERS)),
    (("divide", "power"), 2, elementwise(*_FLOATS)),
    (("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), 2, computing.compare),
    (("not",), 1, elementwise(Element.BOOL)),
    (("and", "or", "xor"), 2, elementwise(Element.BOOL)),
)
ELEMENTWISE = [name for names, _, _ in _ELEMENTWISE for name in names]


def _operators() -> dict[str, Operator]:
    none: frozenset[str] = frozenset()
    reduction = frozenset({"axis", "flag"})
    table = {
        "logits": Operator(0, none, source(Type(Element.LOGITS, (VOCAB,)))),
        "parameter": Operator(0, frozenset({"parameter"}), computing.parameter),
        "history": Operator(0, none, source(Type(Element.INT64, (WINDOW,)), in_window=True)),
        "history_length": Operator(0, none, source(Type(Element.INT64), in_window=True)),
        "token_mask": Operator(0, frozenset({"flag"}), source(Type(Element.BOOL, (VOCAB,)))),
        "token_counts": Operator(0, frozenset({"flag"}), source(Type(Element.INT64, (VOCAB,)))),
        "constant": Operator(0, frozenset({"element", "shape", "data"}), computing.constant),
        "full": Operator(0, frozenset({"element", "shape", "number", "integer"}), computing.full),
        "arange": Operator(0, frozenset({"shape"}), computing.arange),
        "cast": Operator(1, frozenset({"element"}), computing.cast),
        "is_nan": Operator(1, none, computing.is_nan),
        "where": Operator(3, none, computing.where),
        "sum": Operator(1, reduction, computing.reduce),
        "mean": Operator(1, reduction, computing.mean),
        "std": Operator(1, reduction | {"integer"}, computing.std),
        "argmax": Operator(1, reduction, computing.argmax),
        "softmax": Operator(1, frozenset({"axis"}), computing.softmax),
        "log_softmax": Operator(1, frozenset({"axis"}), computing.softmax),
        "cumsum": Operator(1, frozenset({"axis"}), computing.cumsum),
        "argsort": Operator(1, frozenset({"flag"}), computing.argsort),
        "top_k": Operator(1, frozenset({"integer"}), computing.top_k),
        "expand": Operator(1, frozenset({"shape"}), layout.expand),
        "unsqueeze": Operator(1, frozenset({"axis"}), layout.unsqueeze),
        "squeeze": Operator(1, frozenset({"axis"}), layout.squeeze),
        "slice": Operator(1, frozenset({"axis", "begin", "end"}), layout.slicing),
        "pad": Operator(1, frozenset({"axis", "begin", "end", "number", "integer"}), layout.pad),
        "concatenate": Operator(None, frozenset({"axis"}), layout.concatenate),
        "gather_or": Operator(2, frozenset({"number", "integer"}), layout.gather),
        "scatter_drop": Operator(3, none, layout.scatter),
    }
    table |= dict.fromkeys(("amax", "amin"), Operator(1, reduction, computing.reduce))
    for names, inputs, rule in _ELEMENTWISE:
        table |= dict.fromkeys(names, Operator(inputs, none, rule))
    return table


OPERATORS: Mapping[str, Operator] = _operators()
