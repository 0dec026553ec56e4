"""A program as a graph of elementwise operations and reductions along the vocabulary.

A node is either one number for the row, or one for each id. Equal nodes exist once: `softmax` and `log_softmax` of one
value share their maximum and their sum.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport.programs.types import ONE, VOCAB, Element

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.programs.program import Value
    from logitport.programs.types import Type
    from logitport.programs.verifier import Verified


class NotFusible(Exception):
    """The program has an operator or a value that is not compiled. The interpreter runs it."""


# The types of nodes: float, int64, bool.
FLOAT, INT, BOOL = "f", "i", "b"
_TYPES = {Element.LOGITS: FLOAT, Element.FLOAT32: FLOAT, Element.INT64: INT, Element.BOOL: BOOL}
_DATA = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}

# Reductions of the graph: `has_nan` is whether there is any, `first` the lowest index of an element that is true.
REDUCTIONS = frozenset({"sum", "amax", "amin", "has_nan", "first"})
_UNARY = frozenset({"not", "is_nan", "exp", "log", "sqrt", "sigmoid", "tanh", "floor", "ceil", "negate", "absolute"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_LOGICAL = frozenset({"and", "or", "xor"})
_BINARY = _COMPARISONS | _LOGICAL | {"add", "subtract", "multiply", "divide", "minimum", "maximum"}
_BOOLEAN = _COMPARISONS | _LOGICAL | {"not", "is_nan"}
_SAME = frozenset({"expand", "unsqueeze", "squeeze"})
_SOURCES = frozenset({"logits", "parameter", "full", "constant", "arange"})


class Node(NamedTuple):
    """One operation.

    Attributes:
        operator: its name.
        inputs: positions of earlier nodes.
        type: of its result: FLOAT, INT or BOOL.
        is_vector: whether there is a number for each id; else one for the row.
        number: of a constant: the bits of a float32, or an integer; of a parameter its position.
    """

    operator: str
    inputs: tuple[int, ...]
    type: str
    is_vector: bool
    number: int = 0


class Graph:
    """The nodes of a program; the last one that was added need not be the result."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._places: dict[Node, int] = {}

    def add(self, operator: str, *inputs: int, type: str = FLOAT, number: int = 0) -> int:  # noqa: A002
        """Add an operation on earlier nodes, unless it exists. Returns its position."""
        is_vector = operator in ("logits", "arange") or (
            operator not in REDUCTIONS and any(self.nodes[place].is_vector for place in inputs)
        )
        node = Node(operator, inputs, type, is_vector, number)
        if node not in self._places:
            self._places[node] = len(self.nodes)
            self.nodes.append(node)
        return self._places[node]

    def float(self, number: float) -> int:
        """A constant, rounded to float32."""
        with np.errstate(over="ignore"):
            (bits,) = struct.unpack("<I", np.float32(number).tobytes())
        return self.add("constant", number=bits)

    def integer(self, number: int) -> int:
        """A constant."""
        return self.add("constant", type=INT, number=number)

    def choose(self, condition: int, chosen: int, other: int) -> int:
        """One of two floats."""
        return self.add("where", condition, chosen, other)


def may_fuse(verified: Verified) -> bool:
    """Whether all operators can be compiled. `graph_of` also looks at the shapes."""
    return all(value.operator in OPERATORS for value in verified.program.values)


def graph_of(verified: Verified) -> tuple[Graph, int]:
    """Make the graph of a program on float32 logits. Returns it, and the position of the result.

    Raises:
        NotFusible: it has another operator, a value with another shape, or a reduction of another axis.
    """
    program = verified.program
    parameters = {parameter.name: place for place, parameter in enumerate(program.parameters)}
    graph, places = Graph(), list[int]()
    for value, kind in zip(program.values, verified.types, strict=True):
        if any(size not in (ONE, VOCAB) for size in kind.shape) or kind.shape.count(VOCAB) > 1:
            raise NotFusible(f"{value.operator} returns {kind}, which is no row")
        sources = [verified.types[place] for place in value.inputs]
        places.append(_add(graph, value, kind, sources, [places[place] for place in value.inputs], parameters))
    return graph, places[-1]


def _add(
    graph: Graph,
    value: Value,
    kind: Type,
    sources: Sequence[Type],
    inputs: Sequence[int],
    parameters: dict[str, int],
) -> int:
    operator, type_ = value.operator, _TYPES[kind.element]
    if operator == "logits":
        return graph.add("logits")
    if operator == "parameter":
        return graph.add("parameter", type=type_, number=parameters[value.parameter])
    if operator in ("full", "constant"):
        return _constant(graph, value, kind)
    if operator == "arange":
        return graph.add("arange", type=INT) if VOCAB in kind.shape else graph.integer(0)
    if operator in _SAME:
        return inputs[0]
    if operator == "cast":
        return _cast(graph, inputs[0], type_)
    if operator in _UNARY or operator in _BINARY:
        return graph.add(operator, *inputs, type=BOOL if operator in _BOOLEAN else type_)
    if operator == "where":
        return graph.add("where", *inputs, type=type_)
    if operator == "power":
        return _power(graph, *inputs)
    lower = _ALONG.get(operator)
    if lower is None:
        raise NotFusible(f"{operator} is not compiled")
    axes = sources[0].shape
    if axes[-value.axis] != VOCAB:
        raise NotFusible(f"{operator} along another axis than the vocabulary")
    return lower(graph, inputs[0], value)


def _constant(graph: Graph, value: Value, kind: Type) -> int:
    if value.operator == "full":
        return _number(graph, kind.element, value.number if kind.element.is_float else value.integer)
    if VOCAB in kind.shape:
        raise NotFusible("a constant for each id")
    (number,) = np.frombuffer(value.data, _DATA[kind.element]).tolist()
    return _number(graph, kind.element, number)


def _number(graph: Graph, element: Element, number: float) -> int:
    if element.is_float:
        return graph.float(number)
    return graph.add("constant", type=_TYPES[element], number=int(number))


def _cast(graph: Graph, source: int, type_: str) -> int:
    return source if graph.nodes[source].type == type_ else graph.add("cast", source, type=type_)


def _power(graph: Graph, base: int, exponent: int) -> int:
    """Powers with an exponent that is a small whole number. Others need a logarithm of more digits."""
    node = graph.nodes[exponent]
    (number,) = struct.unpack("<f", struct.pack("<I", node.number)) if node.operator == "constant" else (0.0,)
    if number not in (1.0, 2.0, 3.0):
        raise NotFusible("a power with another exponent than 1, 2 and 3")
    result = base
    for _ in range(int(number) - 1):
        result = graph.add("multiply", result, base)
    return result


def _sum(graph: Graph, source: int, value: Value | None = None) -> int:  # noqa: ARG001
    return graph.add("sum", source, type=graph.nodes[source].type)


def _extreme(graph: Graph, source: int, value: Value) -> int:
    return _extreme_of(graph, source, value.operator)


def _extreme_of(graph: Graph, source: int, operator: str) -> int:
    type_ = graph.nodes[source].type
    found = graph.add(operator, source, type=type_)
    if type_ != FLOAT:
        return found
    return graph.choose(graph.add("has_nan", source, type=BOOL), graph.float(float("nan")), found)


def _mean(graph: Graph, source: int, value: Value | None = None) -> int:  # noqa: ARG001
    return graph.add("divide", _sum(graph, source), _cast(graph, graph.add("width", type=INT), FLOAT))


def _std(graph: Graph, source: int, value: Value) -> int:
    deviation = graph.add("subtract", source, _mean(graph, source))
    total = _sum(graph, graph.add("multiply", deviation, deviation))
    width = graph.add("width", type=INT)
    count = _cast(graph, graph.add("subtract", width, graph.integer(value.integer), type=INT), FLOAT)
    return graph.add("sqrt", graph.add("divide", total, count))


def _argmax(graph: Graph, source: int, value: Value) -> int:  # noqa: ARG001
    type_ = graph.nodes[source].type
    largest = graph.add("amax", source, type=type_)
    hit = graph.add("equal", source, largest, type=BOOL)
    if type_ == FLOAT:
        is_nan = graph.add("is_nan", source, type=BOOL)
        hit = graph.add("where", graph.add("has_nan", source, type=BOOL), is_nan, hit, type=BOOL)
    return graph.add("first", hit, type=INT)


def _softmax(graph: Graph, source: int, value: Value | None = None) -> int:  # noqa: ARG001
    powers = graph.add("exp", graph.add("subtract", source, _extreme_of(graph, source, "amax")))
    return graph.add("multiply", powers, graph.add("divide", graph.float(1.0), _sum(graph, powers)))


def _log_softmax(graph: Graph, source: int, value: Value | None = None) -> int:  # noqa: ARG001
    shifted = graph.add("subtract", source, _extreme_of(graph, source, "amax"))
    return graph.add("subtract", shifted, graph.add("log", _sum(graph, graph.add("exp", shifted))))


_ALONG: dict[str, Callable[[Graph, int, Value], int]] = {
    "sum": _sum,
    "mean": _mean,
    "std": _std,
    "amax": _extreme,
    "amin": _extreme,
    "argmax": _argmax,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
# Of the programs that are compiled.
OPERATORS = _SOURCES | _SAME | _UNARY | _BINARY | _ALONG.keys() | {"cast", "where", "power"}
