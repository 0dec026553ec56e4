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
        longest: bytes of the longest text that may complete a string. Longer rests are not kept: the rests of a string
            would take the square of its length.
    """

    def __init__(self, strings: Sequence[bytes], longest: int) -> None:
        # By node and byte. A dictionary for each node takes twice as much memory.
        self._children: dict[tuple[int, int], int] = {}
        # The strings that begin with the text of a node, as the rest after it.
        self._rests: dict[int, list[bytes]] = {}
        for string in strings:
            node = ROOT
            for length, byte in enumerate(string, 1):
                node = self._children.setdefault((node, byte), len(self._children) + 1)
                if len(string) - length <= longest:
                    self._rests.setdefault(node, []).append(string[length:])
        self._shorter = [ROOT] * (len(self._children) + 1)  # the node of the longest proper suffix
        self._found = [b"" in self._rests.get(node, ()) for node in range(len(self._shorter))]
        lengths = {ROOT: 0}
        for (parent, _), child in self._children.items():
            lengths[child] = lengths[parent] + 1
        for (parent, byte), child in sorted(self._children.items(), key=lambda edge: lengths[edge[1]]):
            if parent != ROOT:
                self._shorter[child] = self._next(self._shorter[parent], byte)
            self._found[child] |= self._found[self._shorter[child]]

    def read(self, node: int, text: bytes) -> tuple[int, bool]:
        """The node after a text, and whether one of the strings ends in it."""
        found = False
        for byte in text:
            node = self._next(node, byte)
            found |= self._found[node]
        return node, found

    def rests(self, node: int) -> set[bytes]:
        """The texts of at most `longest` bytes that would complete a string that was read in part."""
        found: set[bytes] = set()
        while node != ROOT:
            found.update(self._rests.get(node, ()))
            node = self._shorter[node]
        return found - {b""}

    def _next(self, node: int, byte: int) -> int:
        while (child := self._children.get((node, byte))) is None:
            if node == ROOT:
                return ROOT
            node = self._shorter[node]
        return child
