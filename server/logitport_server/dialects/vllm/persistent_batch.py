"""vLLM's persistent batch: requests by index, and the records of what changed in it from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_T = TypeVar("_T")


@dataclass
class Changes(Generic[_T]):
    """What changed, to be processed in the order removed, added, moved.

    Attributes:
        removed: indices that are empty and were not, descending.
        added: who was added, and the index at that time.
        moved: from an index to another one, and whether the two have changed places; else the move is one-way.
    """

    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, _T]] = field(default_factory=list)
    moved: list[tuple[int, int, bool]] = field(default_factory=list)


class PersistentBatch(Generic[_T]):
    """Requests by index. They are told apart by identity.

    Source: `_update_states` in vllm/v1/worker/gpu_model_runner.py and `InputBatch` in gpu_input_batch.py, vLLM 0.33.
    """

    def __init__(self) -> None:
        self._requests: list[_T] = []
        self._renewed: set[int] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def renew(self, request: _T) -> None:
        """If the request is here, it is to be removed and added again."""
        self._renewed.add(id(request))

    def clear(self) -> None:
        """Everyone is to be added again, and nobody is there to be removed."""
        self._requests = []
        self._renewed.clear()

    def follow(self, wanted: Sequence[_T]) -> Changes[_T] | None:
        """Make the batch hold these requests, in this order.

        Args:
            wanted: each of them once.

        Returns:
            What changed; None if nothing did.
        """
        if not self._renewed and len(self._requests) == len(wanted) and all(map(_same, self._requests, wanted)):
            return None
        changes: Changes[_T] = Changes()
        staying = {id(request) for request in wanted} - self._renewed
        self._renewed.clear()
        held: list[_T | None] = [request if id(request) in staying else None for request in self._requests]
        empty = [index for index, request in enumerate(held) if request is None]
        staying.intersection_update(map(id, self._requests))
        _add([request for request in wanted if id(request) not in staying], held, empty, changes)
        _condense(held, empty, changes)
        _reorder(held, wanted, changes)
        self._requests = list(wanted)
        return changes if changes.removed or changes.added or changes.moved else None


def _same(one: object, other: object) -> bool:
    return one is other


def _add(new: list[_T], held: list[_T | None], empty: list[int], changes: Changes[_T]) -> None:
    """The lowest empty index comes first, the end of the batch last. Leaves in `empty` those that nobody took."""
    for request in new:
        if empty:
            index = empty.pop(0)
            held[index] = request
        else:
            index = len(held)
            held.append(request)
        changes.added.append((index, request))


def _condense(held: list[_T | None], empty: list[int], changes: Changes[_T]) -> None:
    """Who is last takes the lowest empty index, until all that are empty are last."""
    while empty:
        request = held.pop()
        if request is None:
            changes.removed.append(empty.pop())
        else:
            index = empty.pop(0)
            held[index] = request
            changes.moved.append((len(held), index, False))


def _reorder(held: list[_T | None], wanted: Sequence[_T], changes: Changes[_T]) -> None:
    """Swap until all stand where they are wanted."""
    index_of = {id(request): index for index, request in enumerate(held)}
    for index, request in enumerate(wanted):
        if held[index] is not request:
            other = index_of[id(request)]
            held[other] = held[index]
            index_of[id(held[other])] = other
            changes.moved.append((index, other, True))
