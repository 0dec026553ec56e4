"""Finds the earlier positions of a history that its end repeats, and for how many ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.core.history import History

# Longer repetitions count as this long, so that a history of one id over and over is read in linear time.
MAX_LENGTH = 128
_LENGTH_BITS = MAX_LENGTH.bit_length()
_MAX_REWIND = 16  # lengths that are kept, so that rejecting drafts is cheap
_MAX_KEPT = 8  # positions of all of them, in times of the history's length: all are the same in a history of one id


class _Matches(NamedTuple):
    """The positions before the last one that have the last id.

    Attributes:
        positions: int32[n], ascending.
        lengths: how many ids up to and including each position equal the last ids of the history, int16[n].
    """

    positions: NDArray[np.int32]
    lengths: NDArray[np.int16]


_NONE = _Matches(np.empty(0, np.int32), np.empty(0, np.int16))


class Repetitions:
    """The repetitions of one history, updated id by id.

    An id extends the repetitions that went on before it by one: each update reads the history once, without nested
    loops. The results for the last lengths of the history are kept for `rewind`.
    """

    __slots__ = ("_matches",)

    def __init__(self, history: History) -> None:
        """Read a history of any length."""
        self._matches = [_find(history)]

    def append(self, history: History) -> None:
        """Follow a history after one id was appended."""
        earlier = self._matches[-1]
        positions = _positions_of_last(history)
        # Of all positions: a search in the sorted positions takes ten times as long if there are many.
        before = np.zeros(history.length, np.int16)
        before[earlier.positions + 1] = earlier.lengths
        self._matches.append(_Matches(positions, np.minimum(before[positions] + 1, MAX_LENGTH)))
        if len(self._matches) > 2 * _MAX_REWIND:
            del self._matches[:_MAX_REWIND]
        if sum([len(one.positions) for one in self._matches]) > _MAX_KEPT * history.length:
            del self._matches[: len(self._matches) // 2]

    def rewind(self, history: History, removed: int) -> None:
        """Follow a history after its last `removed` ids were cut off."""
        if removed < len(self._matches):
            del self._matches[len(self._matches) - removed :]
        else:
            self._matches = [_find(history)]

    def longest(
        self, history: History, window: int, breaker: int, minimum: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids that followed a repeated sequence, and the length of the longest such sequence before each.

        Args:
            history: the history.
            window: number of last ids that sequences are sought in.
            breaker: position of the last id that no sequence contains, or -1.
            minimum: the shortest length that counts.

        Returns:
            Distinct ids, ascending, and lengths of at least `minimum`, int64[n] each.
        """
        positions, lengths = self._matches[-1]
        inside = positions - max(0, history.length - window) + 1  # how many ids up to each position are in the window
        lengths = np.minimum(np.minimum(lengths, inside), history.length - 1 - breaker)
        chosen = lengths >= minimum
        followers = history.token_ids[positions[chosen] + 1].astype(np.int64)
        ordered = np.sort(followers << _LENGTH_BITS | lengths[chosen])
        followers = ordered >> _LENGTH_BITS
        longest = np.ones(len(followers), np.bool_)
        np.not_equal(followers[1:], followers[:-1], out=longest[:-1])
        return followers[longest], ordered[longest] & ((1 << _LENGTH_BITS) - 1)


def _positions_of_last(history: History) -> NDArray[np.int32]:
    ids = history.token_ids
    return np.flatnonzero(ids[:-1] == ids[-1]).astype(np.int32)


def _find(history: History) -> _Matches:
    """Compare the ids before each position with the last ids, as long as any position remains."""
    if not history.length:
        return _NONE
    ids, last = history.token_ids, history.length - 1
    positions = _positions_of_last(history)
    lengths = np.ones(len(positions), np.int16)
    alive = np.arange(len(positions))
    for length in range(1, MAX_LENGTH):
        alive = alive[positions[alive] >= length]
        alive = alive[ids[positions[alive] - length] == ids[last - length]]
        if not len(alive):
            break
        lengths[alive] += 1
    return _Matches(positions, lengths)
