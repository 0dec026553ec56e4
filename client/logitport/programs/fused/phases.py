"""Which nodes each pass over a row computes.

A reduction ends a phase: its result is available in the next one. Numbers for each id are not kept between phases, but
computed again: an `exp` takes less time than a read of memory that is not in the nearest caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.fused.nodes import REDUCTIONS, NotFusible, graph_of

if TYPE_CHECKING:
    from logitport.programs.fused.nodes import Graph, Node
    from logitport.programs.verifier import Verified

# Otherwise a program of n operators and n reductions could compute n^2 of them. min-p has 2.6.
_MAX_REPEATED = 6
# Of nodes; others count 1.
_WEIGHTS = {"exp": 15, "log": 20, "sigmoid": 20, "tanh": 25, "divide": 5, "sqrt": 5, "cast": 2}


class Phase(NamedTuple):
    """One pass over a row.

    Attributes:
        scalars: nodes to compute before the pass, in order.
        vectors: nodes to compute for each id, in order.
        reductions: nodes that are accumulated.
    """

    scalars: tuple[int, ...]
    vectors: tuple[int, ...]
    reductions: tuple[int, ...]


class Phases(NamedTuple):
    """The passes over a row. The last one writes the result.

    Attributes:
        graph: the nodes.
        result: position of the result.
        passes: the passes.
    """

    graph: Graph
    result: int
    passes: tuple[Phase, ...]

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the graph."""
        return self.graph.nodes


def phases_of(verified: Verified) -> Phases:
    """Divide a program. Raises NotFusible as `graph_of`, and if too much would be computed again."""
    graph, result = graph_of(verified)
    levels = _levels(graph)
    passes = []
    for level in range(levels[result] + 1):
        reductions = [
            place
            for place, node in enumerate(graph.nodes)
            if node.operator in REDUCTIONS and levels[place] == level + 1
        ]
        targets = [graph.nodes[place].inputs[0] for place in reductions]
        vectors = _needed(graph, [*targets, result] if level == levels[result] else targets)
        scalars = [
            place
            for place, node in enumerate(graph.nodes)
            if levels[place] == level and not node.is_vector and node.operator not in REDUCTIONS
        ]
        passes.append(Phase(tuple(scalars), tuple(vectors), tuple(reductions)))
    once = _work(graph, {place for one in passes for place in one.vectors})
    if sum(_work(graph, set(one.vectors)) for one in passes) > _MAX_REPEATED * once:
        raise NotFusible("too many values would be computed again after reductions")
    return Phases(graph, result, tuple(passes))


def _levels(graph: Graph) -> list[int]:
    """The first phase that can compute, or read, each node."""
    levels: list[int] = []
    for node in graph.nodes:
        first = max((levels[place] for place in node.inputs), default=0)
        levels.append(first + (node.operator in REDUCTIONS))
    return levels


def _needed(graph: Graph, targets: list[int]) -> list[int]:
    """The numbers for each id that these nodes are computed from, in order."""
    needed, waiting = set[int](), list(targets)
    while waiting:
        place = waiting.pop()
        if graph.nodes[place].is_vector and place not in needed:
            needed.add(place)
            waiting.extend(graph.nodes[place].inputs)
    return sorted(needed)


def _work(graph: Graph, places: set[int]) -> int:
    return sum(_WEIGHTS.get(graph.nodes[place].operator, 1) for place in places)
