"""Finds strings in the text of an output, id by id.

The text of an output may begin in two ways, because some tokenizers drop a space before the first id, and engines that
decode the output after the prompt keep it. Both are followed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitport_builtins.by_text.automaton import ROOT, Automaton

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.tokenizers import Tokenizer

_MAX_MATCHERS = 64
_MAX_NODES = 64


class Position(NamedTuple):
    """Common part of the end of an output's text and the strings: nodes of the automaton.

    Attributes:
        first: with the first id as the tokenizer decodes it at the start of a text.
        later: with the first id as after another one.
        begun: whether an id with a text was read.
        found: whether a string has occurred.
    """

    first: int
    later: int
    begun: bool
    found: bool


START = Position(ROOT, ROOT, begun=False, found=False)


class Matcher:
    """Finds some strings in texts of a tokenizer. Raises PayloadError if the texts of its ids are not known."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[bytes]) -> None:
        self._first, self._later = tokenizer.texts(first=True), tokenizer.texts()
        self._automaton = Automaton(strings, max(self._first.longest, self._later.longest))
        self._containing = _union([self._later.containing(string) for string in strings])
        self._at_start = (
            self._containing
            if self._first is self._later
            else _union([self._containing, *(self._first.containing(string) for string in strings)])
        )
        # Some, not all: the arrays may be large.
        self._completing = functools.lru_cache(_MAX_NODES)(self._find_completing)

    def advance(self, position: Position, token_id: int) -> Position:
        """The position after one more id."""
        later = self._later.of(token_id)
        text = later if position.begun else self._first.of(token_id)
        if not later and not text:
            return position
        first_node, in_first = self._automaton.read(position.first, text)
        if position.begun and position.first == position.later:
            later_node, in_later = first_node, in_first
        else:
            later_node, in_later = self._automaton.read(position.later, later)
        return Position(first_node, later_node, begun=True, found=position.found or in_first or in_later)

    def containing(self, position: Position) -> NDArray[np.int32]:
        """The ids that contain a string wholly."""
        return self._containing if position.begun else self._at_start

    def completing(self, position: Position) -> list[NDArray[np.int32]]:
        """The ids that complete a string that the text has begun, in arrays that may overlap."""
        if not position.begun:
            return []
        nodes = (position.first,) if position.first == position.later else (position.first, position.later)
        return [self._completing(node) for node in nodes]

    def _find_completing(self, node: int) -> NDArray[np.int32]:
        return _union([self._later.starting_with(rest) for rest in self._automaton.rests(node)])


@functools.lru_cache(_MAX_MATCHERS)
def matcher(tokenizer: Tokenizer, strings: tuple[bytes, ...]) -> Matcher:
    """Return the matcher of some strings; requests with the same strings share it."""
    return Matcher(tokenizer, strings)


class Followed:
    """The positions of one request's output, after each of its ids."""

    __slots__ = ("_positions", "matcher")

    def __init__(self, used: Matcher, output: Sequence[int]) -> None:
        self.matcher = used
        self._positions = [START]
        for token_id in output:
            self.advance(token_id)

    @property
    def position(self) -> Position:
        """The position after the last id."""
        return self._positions[-1]

    def advance(self, token_id: int) -> None:
        """Read an id that was appended to the output."""
        self._positions.append(self.matcher.advance(self._positions[-1], token_id))

    def rewind(self, length: int) -> None:
        """Follow an output that was cut back to this length."""
        del self._positions[length + 1 :]


def _union(arrays: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    joined = np.unique(np.concatenate([np.empty(0, np.int32), *arrays]))
    joined.flags.writeable = False
    return joined
