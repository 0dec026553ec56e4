"""The draft tokens of one request in a step: a chain, or a tree."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OwnerT = TypeVar("OwnerT", bound=Hashable)


class DraftParents(tuple[int, ...]):
    """For each draft the index of the draft that it follows, less than its own; -1 if it follows the history.

    It keeps its walk, because many steps may have the same tree.
    """

    _walk: tuple[list[tuple[int, int]], list[int]] | None = None  # of the class: a step makes a tree for each request

    def walk(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the walk, as `Drafts.walk`, and the place of each draft offset in it. Do not change the lists.

        The parents are not checked: see `wrong_parent`.
        """
        if self._walk is None:
            children: list[list[int]] = [[] for _ in range(1 + len(self))]
            for index, parent in enumerate(self):
                children[parent + 1].append(index + 1)
            walked: list[tuple[int, int]] = []
            waiting, visits = [(0, 0)], [0] * (1 + len(self))
            while waiting:
                offset, depth = waiting.pop()
                visits[offset] = len(walked)
                walked.append((offset, depth))
                waiting += [(child, depth + 1) for child in reversed(children[offset])]
            self._walk = walked, visits
        return self._walk

    def depth(self) -> int:
        """Return the number of drafts on the longest path."""
        return max(depth for _, depth in self.walk()[0])


_CHAIN = DraftParents()


class Drafts(tuple[int, ...]):
    """Draft token ids of one request, and the draft that each of them follows.

    A row with draft offset 0 sees the history alone. A row with draft offset j sees the history, then the ancestors of
    draft j - 1, then that draft.

    Attributes:
        parents: the tree. Empty if each draft follows the one before it.
    """

    parents = _CHAIN

    def __new__(cls, token_ids: Iterable[int] = (), parents: Sequence[int] = ()) -> Drafts:
        """The parents are not checked: see `wrong_parent`."""
        self = super().__new__(cls, token_ids)
        if parents:
            self.parents = parents if isinstance(parents, DraftParents) else DraftParents(parents)
        return self

    def path(self, offset: int) -> list[int]:
        """Return the ids of the drafts that a row with this draft offset sees, in their order."""
        if not self.parents:
            return list(self[:offset])
        ids = []
        while offset:
            ids.append(self[offset - 1])
            offset = self.parents[offset - 1] + 1
        return ids[::-1]

    def depth(self, offset: int) -> int:
        """Return the number of drafts that a row with this draft offset sees."""
        return len(self.path(offset)) if self.parents else offset

    def walk(self) -> list[tuple[int, int]]:
        """List all draft offsets, each with its depth, so that each draft is appended once: depth first, from 0 on."""
        return self.parents.walk()[0] if self.parents else [(offset, offset) for offset in range(1 + len(self))]


class DraftWalks(Generic[OwnerT]):
    """The walks of several requests, side by side: visit n is at the n-th draft offset of each of them.

    Args:
        drafts: the drafts of each request.

    Attributes:
        visits: the number of visits, 1 or more.
    """

    def __init__(self, drafts: Mapping[OwnerT, Drafts]) -> None:
        self._drafts = drafts
        self.visits = 1 + max(map(len, drafts.values()), default=0)

    def __iter__(self) -> Iterator[OwnerT]:
        return iter(self._drafts)

    def visit_of(self, owner: OwnerT, offset: int) -> int:
        """Return the visit at this draft offset of a request: the offset itself, unless its drafts are a tree."""
        drafts = self._drafts.get(owner)
        return drafts.parents.walk()[1][offset] if drafts is not None and drafts.parents else offset

    def changes(self, visit: int) -> Iterator[tuple[OwnerT, int, int]]:
        """Yield what changes at this visit, if the visits before it were made, 0 first, which changes nothing.

        Yields:
            A request, the number of its drafts that stay, and the id that is appended to them.
        """
        for owner, drafts in self._drafts.items() if visit else ():
            if visit <= len(drafts):
                offset, depth = drafts.parents.walk()[0][visit] if drafts.parents else (visit, visit)
                yield owner, depth - 1, drafts[offset - 1]


def wrong_parent(parents: Sequence[int]) -> int | None:
    """Return the index of the first draft with a parent outside [-1, index); None if there is none."""
    return next((index for index, parent in enumerate(parents) if not -1 <= parent < index), None)
