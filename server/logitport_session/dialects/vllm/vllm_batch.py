"""vLLM's persistent batch: requests by index, and the records of what changed in it from step to step."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_T = TypeVar("_T")


@dataclass
class Changes(Generic[_T]):
    """Changes of a batch, to be processed in the order removed, added, moved.

    Attributes:
        removed: indices of requests that left, descending.
        added: the initial index of each new request, and the request.
        moved: source index, target index, and whether the two were swapped; otherwise the move is one-way.
    """

    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, _T]] = field(default_factory=list)
    moved: list[tuple[int, int, bool]] = field(default_factory=list)


class VllmBatch(Generic[_T]):
    """Requests by index. Requests are compared by identity.

    Source: `_update_states` in vllm/v1/worker/gpu_model_runner.py and `InputBatch` in gpu_input_batch.py, vLLM 0.33.
    """

    def __init__(self) -> None:
        self._requests: list[_T] = []
        self._renewed: set[int] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def renew(self, request: _T) -> None:
        """Remove and add the request again in the next `follow`, if it is in the batch."""
        self._renewed.add(id(request))

    def clear(self) -> None:
        """Forget all requests: the next `follow` adds all and removes none."""
        self._requests = []
        self._renewed.clear()

    def follow(self, requests: Sequence[_T]) -> Changes[_T] | None:
        """Make the batch hold these requests, in this order.

        Args:
            requests: distinct requests.

        Returns:
            What changed; None if nothing did.
        """
        if (
            not self._renewed
            and len(self._requests) == len(requests)
            and all(map(operator.is_, self._requests, requests))
        ):
            return None
        changes: Changes[_T] = Changes()
        staying = {id(request) for request in requests} - self._renewed
        self._renewed.clear()
        held: list[_T | None] = [request if id(request) in staying else None for request in self._requests]
        empty = [index for index, request in enumerate(held) if request is None]
        staying.intersection_update(map(id, self._requests))
        _add([request for request in requests if id(request) not in staying], held, empty, changes)
        _condense(held, empty, changes)
        _reorder(held, requests, changes)
        self._requests = list(requests)
        return changes if changes.removed or changes.added or changes.moved else None


def _add(new: list[_T], held: list[_T | None], empty: list[int], changes: Changes[_T]) -> None:
    """Put new requests at the lowest empty indices, then at the end. Leaves the remaining indices in `empty`."""
    for request in new:
        if empty:
            index = empty.pop(0)
            held[index] = request
        else:
            index = len(held)
            held.append(request)
        changes.added.append((index, request))


def _condense(held: list[_T | None], empty: list[int], changes: Changes[_T]) -> None:
    """Move the last request to the lowest empty index until no empty index is left."""
    while empty:
        request = held.pop()
        if request is None:
            changes.removed.append(empty.pop())
        else:
            index = empty.pop(0)
            held[index] = request
            changes.moved.append((len(held), index, False))


def _reorder(held: list[_T | None], ordered: Sequence[_T], changes: Changes[_T]) -> None:
    """Swap requests until they have the order of `ordered`."""
    index_of = {id(request): index for index, request in enumerate(held)}
    for index, request in enumerate(ordered):
        if held[index] is not request:
            other = index_of[id(request)]
            held[other] = held[index]
            index_of[id(held[other])] = other
            changes.moved.append((index, other, True))
