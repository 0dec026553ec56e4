"""Random trees of drafts, and their links by brute force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@dataclass(frozen=True)
class Tree:
    """Nodes in an order in which parents precede their children; node 0 is the root.

    Attributes:
        parents: of each node; -1 for the root.
    """

    parents: list[int]

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to this one."""
        return ([] if node == 0 else self.path(self.parents[node])) + [node]

    def children(self, node: int) -> list[int]:
        """Return the children of a node, ascending."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def mask(self) -> list[list[bool]]:
        """Return, for each node, which nodes are on its path."""
        nodes = range(len(self.parents))
        return [[other in self.path(node) for other in nodes] for node in nodes]

    def next_token(self) -> list[int]:
        """Return the first child of each node; -1 for none."""
        return [min(self.children(node), default=-1) for node in range(len(self.parents))]

    def next_sibling(self) -> list[int]:
        """Return the next child of each node's parent; -1 for none."""
        siblings = [self.children(parent) if parent >= 0 else [] for parent in self.parents]
        return [min((other for other in group if other > node), default=-1) for node, group in enumerate(siblings)]


def random_tree(source: random.Random, nodes: int) -> Tree:
    """Return a tree of this many nodes, from a chain to a star."""
    width = source.randint(1, nodes)
    return Tree([-1, *(max(0, node - source.randint(1, width)) for node in range(1, nodes))])
