"""The automaton of Aho and Corasick (1975), which finds strings in a text that is read once, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = 0


class Automaton:
    """A trie of the strings. The node of a text is the longest suffix of it that begins one of the strings.

    Args:
        strings: none of them empty.
    """

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._children: list[dict[int, int]] = [{}]
        # The strings that begin with the text of a node, as the rest after it.
        self._rests: list[list[bytes]] = [[]]
        for string in strings:
            node = ROOT
            for length, byte in enumerate(string, 1):
                if byte not in self._children[node]:
                    self._children[node][byte] = len(self._children)
                    self._children.append({})
                    self._rests.append([])
                node = self._children[node][byte]
                self._rests[node].append(string[length:])
        self._shorter = [ROOT] * len(self._children)  # the node of the longest proper suffix
        self._found = [b"" in rests for rests in self._rests]
        nodes = list(self._children[ROOT].values())
        for node in nodes:  # breadth first: it grows
            for byte, child in self._children[node].items():
                self._shorter[child] = self._next(self._shorter[node], byte)
                self._found[child] |= self._found[self._shorter[child]]
                nodes.append(child)

    def read(self, node: int, text: bytes) -> tuple[int, bool]:
        """The node after a text, and whether one of the strings ends in it."""
        found = False
        for byte in text:
            node = self._next(node, byte)
            found |= self._found[node]
        return node, found

    def rests(self, node: int) -> set[bytes]:
        """The texts that would complete a string of which a part was read; not the whole strings."""
        found: set[bytes] = set()
        while node != ROOT:
            found.update(self._rests[node])
            node = self._shorter[node]
        return found - {b""}

    def _next(self, node: int, byte: int) -> int:
        while byte not in self._children[node]:
            if node == ROOT:
                return ROOT
            node = self._shorter[node]
        return self._children[node][byte]
