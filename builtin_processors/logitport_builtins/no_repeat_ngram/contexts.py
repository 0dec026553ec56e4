"""64-bit hashes of contexts, and an immutable index over them. A context is the n - 1 ids before a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Two odd multipliers: Knuth's MMIX generator (TAOCP 2, 3.3.4), and 2**64 / golden ratio (TAOCP 3, 6.4).
_BASE = 6364136223846793005
_SCALE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_INVERSE = pow(_BASE, -1, _MASK + 1)

_MAX_BUCKET_BITS = 16  # NumPy sorts 16-bit keys by radix, in linear time

NO_POSITIONS: NDArray[np.int32] = np.empty(0, np.int32)


class ContextHash:
    """The polynomial rolling hash of Karp and Rabin (1987), modulo 2**64.

    The hash of the ids t[0], …, t[n - 2] is the sum of t[i] * SCALE * BASE**(n - 2 - i). If the history has fewer than
    n - 1 ids, all of them are hashed.
    """

    __slots__ = ("_leaving", "_size")

    def __init__(self, size: int) -> None:
        """Prepare for n-grams of `size` ids."""
        self._size = size
        self._leaving = _SCALE * pow(_BASE, size - 1, _MASK + 1) & _MASK

    def roll(self, context: int, leaving_id: int, joining_id: int) -> int:
        """The next context: removes `leaving_id` (or 0) from the front and appends `joining_id`."""
        return (context * _BASE + joining_id * _SCALE - leaving_id * self._leaving) & _MASK

    def all(self, token_ids: NDArray[np.int32]) -> NDArray[np.uint64]:
        """The context of each position of int32[n], and of the position after the last: uint64[n + 1].

        Takes linear time for any `size`: differences of prefix sums, scaled by powers of the (odd) base.
        """
        length = len(token_ids)
        sums = np.zeros(length + 1, np.uint64)
        np.cumsum(token_ids.astype(np.uint64) * _powers(_INVERSE, length), out=sums[1:])
        differences = sums.copy()
        differences[self._size - 1 :] -= sums[: max(0, length + 2 - self._size)]
        return differences * _powers(_BASE, length + 1) * np.uint64(_SCALE * _INVERSE & _MASK)


class FrozenIndex:
    """Positions by context, built once: sorted by bucket, with only the latest of equal n-grams.

    Each position has eight further bits of the hash, which end almost every look-up of a context that is not indexed.
    """

    __slots__ = ("_begins", "_marks", "_positions", "_shift")

    def __init__(
        self, token_ids: NDArray[np.int32], positions: NDArray[np.int64], contexts: NDArray[np.uint64], size: int
    ) -> None:
        """Index `positions`, int64[n], ascending, with `contexts`, uint64[n]; n-grams have `size` ids."""
        bits = min(_MAX_BUCKET_BITS, max(1, len(positions).bit_length()))
        self._shift = 64 - bits
        buckets = (contexts >> np.uint64(self._shift)).astype(np.uint16)
        within = (contexts ^ token_ids[positions].astype(np.uint64)).astype(np.uint16)
        order = np.lexsort((within, buckets))  # equal n-grams become adjacent, the latest last
        order = np.delete(order, _superseded(token_ids, positions[order], contexts[order], size))
        begins = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(np.bincount(buckets[order], minlength=1 << bits), out=begins[1:])
        self._positions = positions[order].astype(np.int32)
        # A memoryview and bytes, because single look-ups in arrays are slower.
        self._begins = begins.data
        self._marks = (contexts[order] >> np.uint64(self._shift - 8)).astype(np.uint8).tobytes()

    def __len__(self) -> int:
        return len(self._positions)

    def look_up(self, context: int) -> NDArray[np.int32]:
        """All positions of this context, and possibly positions of others, int32[n]; a view."""
        bucket = context >> self._shift
        begin, end = self._begins[bucket], self._begins[bucket + 1]
        if self._marks.find(context >> (self._shift - 8) & 255, begin, end) < 0:
            return NO_POSITIONS
        return self._positions[begin:end]


def _superseded(
    token_ids: NDArray[np.int32], positions: NDArray[np.int64], contexts: NDArray[np.uint64], size: int
) -> NDArray[np.int64]:
    """Indices in `positions` with a successor that has the same n-gram. Ids are compared, because hashes collide."""
    found = np.flatnonzero(contexts[:-1] == contexts[1:])
    for backwards in range(size):
        if not found.size:
            break
        found = found[token_ids[positions[found] - backwards] == token_ids[positions[found + 1] - backwards]]
    return found


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """base**0, …, base**(count - 1) modulo 2**64."""
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)
