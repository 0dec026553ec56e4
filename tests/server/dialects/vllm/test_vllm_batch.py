"""The persistent batch: its changes are those of vLLM, and applying them keeps each request's state at its index."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from logitport_session.dialects.vllm.vllm_batch import Changes, VllmBatch
from logitport_session.stubs.vllm.v1.sample.logits_processor import (
    BatchUpdate,
    MoveDirectionality,
    process_dict_updates,
)
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

HISTORIES = 10_000


@dataclass(eq=False)
class Request:
    """A request with or without state."""

    name: int
    sparse: int | None


@pytest.mark.parametrize(
    ("before", "now", "renewed", "changes"),
    [
        ("", "ab", "", Changes(added=[(0, "a"), (1, "b")])),
        ("a", "abc", "", Changes(added=[(1, "b"), (2, "c")])),
        # Added rows replace removed ones, in increasing order; the rest is appended.
        ("abcd", "ebfd", "", Changes(added=[(0, "e"), (2, "f")])),
        ("abc", "adce", "", Changes(added=[(1, "d"), (3, "e")])),
        # Other empty indices are filled from the highest index, or removed at the end.
        ("abcde", "edc", "", Changes(moved=[(4, 0, False), (3, 1, False)])),
        ("abcd", "db", "", Changes(removed=[2], moved=[(3, 0, False)])),
        ("abcd", "ab", "", Changes(removed=[3, 2])),
        ("abcd", "", "", Changes(removed=[3, 2, 1, 0])),
        # Swaps put rows in order, also those that were just added.
        ("abc", "cab", "", Changes(moved=[(0, 2, True), (1, 2, True)])),
        ("abc", "dca", "", Changes(added=[(1, "d")], moved=[(0, 1, True), (1, 2, True)])),
        # A renewed request is removed and added.
        ("abc", "abc", "b", Changes(added=[(1, "b")])),
        ("abc", "ac", "bc", Changes(removed=[2], added=[(1, "c")])),
        ("a", "ab", "b", Changes(added=[(1, "b")])),
        ("a", "a", "b", None),
        ("ab", "ab", "", None),
        ("", "", "", None),
    ],
)
def test_the_changes_are_those_of_vllm(before: str, now: str, renewed: str, changes: Changes[str] | None) -> None:
    batch: VllmBatch[str] = VllmBatch()
    batch.follow([*before])
    for letter in renewed:
        batch.renew(letter)
    assert batch.follow([*now]) == changes
    assert len(batch) == len(now)


def test_after_clear_all_requests_are_added() -> None:
    batch: VllmBatch[str] = VllmBatch()
    batch.follow(["a", "b"])
    batch.clear()
    assert batch.follow(["b"]) == Changes(added=[(0, "b")])


def test_equal_requests_are_distinguished_by_identity() -> None:
    one, other = [1], [1]
    batch: VllmBatch[list[int]] = VllmBatch()
    batch.follow([one, other])
    assert batch.follow([other, one]) == Changes(moved=[(0, 1, True)])


def histories(count: int) -> Iterator[Iterator[tuple[list[Request], set[Request]]]]:
    """Random batch histories: for each step the requests, in order, and those that must be added again."""
    for number in range(count):
        yield steps(random.Random(number))


def steps(draw: random.Random) -> Iterator[tuple[list[Request], set[Request]]]:
    running: list[Request] = []
    name = 0
    for _ in range(draw.randint(2, 12)):
        for request in list(running):
            if draw.random() < 0.25:
                running.remove(request)
        for _ in range(draw.choice((0, 0, 1, 1, 2, 5))):
            name += 1
            running.append(Request(name, name if draw.random() < 0.5 else None))
        if draw.random() < 0.5:
            draw.shuffle(running)
        scheduled = [request for request in running if draw.random() < 0.9]
        yield scheduled, {request for request in running if draw.random() < 0.05}


def as_update(changes: Changes[Request] | None, size: int) -> BatchUpdate | None:
    if changes is None:
        return None
    kinds = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP
    moved = [(source, target, kinds[swaps]) for source, target, swaps in changes.moved]
    added: Any = [(index, request, None, []) for index, request in changes.added]
    return BatchUpdate(size, changes.removed, added, moved)


class Dense:
    """State at every index, updated like a processor that keeps a tensor."""

    def __init__(self) -> None:
        self.at: dict[int, Request] = {}

    def update(self, update: BatchUpdate) -> None:
        for index in update.removed:
            del self.at[index]
        for index, request, _, _ in update.added:
            self.at[index] = request  # type: ignore[assignment]
        for source, target, direction in update.moved:
            if direction is MoveDirectionality.SWAP:
                self.at[source], self.at[target] = self.at[target], self.at[source]
            else:
                self.at[target] = self.at.pop(source)


def test_every_history_leaves_all_state_on_the_right_request() -> None:
    for history in histories(examples(HISTORIES)):
        batch: VllmBatch[Request] = VllmBatch()
        dense, sparse = Dense(), dict[int, int]()
        for requests, renewed in history:
            for request in renewed:
                batch.renew(request)
            changes = batch.follow(requests)
            update = as_update(changes, len(requests))
            if update is not None:
                dense.update(update)
                fresh = {request for _, request, _, _ in update.added}
                assert renewed & set(requests) <= fresh
            process_dict_updates(sparse, update, lambda request, *_: request.sparse)
            assert dense.at == dict(enumerate(requests))
            assert sparse == {index: one.sparse for index, one in enumerate(requests) if one.sparse is not None}
