"""Finds the ids that followed earlier occurrences of the last n - 1 ids of a history."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState
from logitport_builtins.first_denial import FirstDenial
from logitport_builtins.no_repeat_ngram.contexts import NO_POSITIONS, ContextHash, FrozenIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.core.history import History

_UNFROZEN = 128  # ids at the end that are not frozen, so that rejecting drafts is cheap
_MIN_RECENT = 512  # minimum number of ids between two rebuilds
_FEW = 32  # up to this many ids, comparing one by one is faster than comparing arrays


class PythonNGramIndex(HistoryState):
    """Denies ids that would repeat an n-gram of `size` ids within the last `window` ids, unless in `whitelist`.

    Keeps the positions of one history by their context, the `size - 1` ids before them.

    Look-ups use a hash of the context. The positions found are compared with the history, because hashes collide.
    Appended ids go into a dictionary, the recent part. `rewind` removes them. When the recent part has grown
    to 1/32 of the frozen part, everything is frozen again in linear time. So the average time per id does not depend
    on the length.

    Memory at 32k ids: below 1 MB.
    """

    __slots__ = (
        *("_contexts", "_first_denial", "_frozen", "_frozen_length", "_hash"),
        *("_rebuild_length", "_recent", "_size", "_vocab_size", "_whitelist", "_window"),
    )
    advances = True

    def __init__(self, history: History, size: int, window: int, whitelist: Sequence[int], vocab_size: int) -> None:
        """Index all of `history`, except ids that are in `whitelist`, or not in [0, vocab_size)."""
        self._size = size
        self._window = window
        self._whitelist = frozenset(whitelist)
        self._vocab_size = vocab_size
        self._hash = ContextHash(size)
        self._first_denial = FirstDenial()
        self._build(history)

    def advance(self, history: History, token_id: int) -> None:
        contexts, size, length = self._contexts, self._size, history.length
        context = contexts[-1]
        leaving_id = 0
        if length >= size:
            self._record(context, length - 1, token_id)
            leaving_id = history.at(length - size)
        contexts.append(self._hash.roll(context, leaving_id, token_id))
        if length >= self._rebuild_length:
            self._build(history)

    def rewind(self, history: History) -> None:
        self._first_denial.rewind(history.length)
        if len(history) < self._frozen_length:
            self._build(history)
            return
        for position in range(self._frozen_length + len(self._contexts) - 2, len(history) - 1, -1):
            self._contexts.pop()
            self._forget(self._contexts[-1], position)

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        followers = self.followers(history)
        if followers.size:
            edits.deny(followers)
        denies, denying = bool(followers.size), partial(self._denying, history)
        if self._first_denial.is_at(history.prompt_length, history.length, denies, denying):
            edits.event("ids_denied")

    def followers(self, history: History) -> NDArray[np.int32]:
        """The ids that would complete an n-gram of the window again, int32[n], each once."""
        context = self._contexts[-1]
        positions = self._frozen.look_up(context)
        recent = self._recent.get(context)
        if recent is not None:
            positions = np.concatenate([positions, recent])
        elif positions is NO_POSITIONS:
            return NO_POSITIONS
        size, length = self._size, history.length
        earliest = max(0, length - self._window) + size - 1
        if len(positions) * size <= _FEW:
            at, last = history.at, range(1, size)
            candidates = [position for position in positions.tolist() if position >= earliest]
            ids = {at(here) for here in candidates if all(at(here - back) == at(length - back) for back in last)}
            return np.array(sorted(ids), np.int32)
        token_ids = history.token_ids
        positions = positions[positions >= earliest]
        backwards = np.arange(1, size)[:, None]
        same = token_ids[positions - backwards] == token_ids[length - backwards]
        return _distinct(token_ids[positions[same.all(axis=0)]])

    def _build(self, history: History) -> None:
        """Index all of the history again: the ids that a rewind may cut go to the recent part, the rest is frozen."""
        token_ids, size = history.token_ids, self._size
        self._frozen_length = max(history.prompt_length, len(token_ids) - _UNFROZEN)
        first = max(0, self._frozen_length - self._window)  # earlier ids are outside every future window
        contexts = self._hash.all(token_ids[first:])
        positions = np.arange(min(first + size - 1, self._frozen_length), self._frozen_length)
        positions = positions[self._may_be_denied(token_ids[positions])]
        self._frozen = FrozenIndex(token_ids, positions, contexts[positions - first], size)
        # The context of each position after the frozen part, including the next id's.
        self._contexts: list[int] = contexts[self._frozen_length - first :].tolist()
        self._rebuild_length = self._frozen_length + _UNFROZEN + max(_MIN_RECENT, len(self._frozen) // 32)
        self._recent: dict[int, array[int]] = {}
        for position in range(max(self._frozen_length, size - 1), len(token_ids)):
            self._record(self._contexts[position - self._frozen_length], position, token_ids.item(position))

    def _denying(self, history: History, begin: int) -> Iterator[int]:
        """Yield the lengths from `begin` on, below the history's, at which ids are denied. Reads all of the history."""
        ids, size = history.token_ids, self._size
        may_be_denied = self._may_be_denied(ids).tolist()
        positions: dict[int, array[int]] = {}  # before the present one, with ids that may be denied, by context
        for length, context in enumerate(self._hash.all(ids)[:-1].tolist()):
            if length < size - 1:
                continue
            earlier = positions.setdefault(context, array("i"))
            earliest = max(0, length - self._window) + size - 1
            last = ids[length - size + 1 : length]
            in_window = takewhile(lambda position: position >= earliest, reversed(earlier))  # noqa: B023
            if length >= begin and any(np.array_equal(ids[here - size + 1 : here], last) for here in in_window):
                yield length
            if may_be_denied[length]:
                earlier.append(length)

    def _may_be_denied(self, followers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each of these ids may be denied, bool[n]."""
        in_vocabulary = (followers >= 0) & (followers < self._vocab_size)
        if not self._whitelist:
            return in_vocabulary
        return in_vocabulary & ~np.isin(followers, np.array([*self._whitelist], np.int64))

    def _record(self, context: int, position: int, token_id: int) -> None:
        if not 0 <= token_id < self._vocab_size or token_id in self._whitelist:
            return
        positions = self._recent.get(context)
        if positions is None:
            self._recent[context] = array("i", (position,))
        else:
            positions.append(position)

    def _forget(self, context: int, position: int) -> None:
        positions = self._recent.get(context)
        if positions and positions[-1] == position:
            positions.pop()
            if not positions:
                del self._recent[context]


def _distinct(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sort and remove duplicates. `np.unique` uses a hash table for integers and is several times slower."""
    ids.sort()
    is_first = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
    return ids[is_first]


NGramIndex = PythonNGramIndex if core is None else core.NGramIndex
