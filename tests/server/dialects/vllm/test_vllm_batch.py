"""The persistent batch: its changes are those of vLLM, and applying them keeps each request's state at its index."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_session.dialects.vllm.vllm_batch import Changes, VllmBatch
from logitport_session.stubs.vllm.v1.sample.logits_processor import (
    BatchUpdate,
    MoveDirectionality,
    process_dict_updates,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HISTORIES = 10_000


@dataclass(eq=False)
class Request:
    """A request with or without state."""

    name: int
    sparse: int | None


def follow(before: str, now: str, renewed: str = "") -> tuple[list[int], list[tuple[int, str]], list[Any]]:
    """The changes from one batch to another, of requests with names of one letter."""
    batch: VllmBatch[str] = VllmBatch()
    letters = {letter: letter for letter in {*before, *now}}
    batch.follow([letters[letter] for letter in before])
    for letter in renewed:
        batch.renew(letters[letter])
    changes = batch.follow([letters[letter] for letter in now])
    assert changes is not None
    return changes.removed, changes.added, changes.moved


def test_adds_are_appended() -> None:
    assert follow("", "ab") == ([], [(0, "a"), (1, "b")], [])
    assert follow("a", "abc") == ([], [(1, "b"), (2, "c")], [])


def test_adds_replace_what_was_removed_in_increasing_order() -> None:
    assert follow("abcd", "ebfd") == ([], [(0, "e"), (2, "f")], [])


def test_surplus_adds_are_appended_after_that() -> None:
    assert follow("abc", "adce") == ([], [(1, "d"), (3, "e")], [])


def test_surplus_removes_are_condensed_from_the_highest_index() -> None:
    assert follow("abcde", "edc") == ([], [], [(4, 0, False), (3, 1, False)])


def test_empty_indices_at_the_end_are_removed() -> None:
    assert follow("abcd", "db") == ([2], [], [(3, 0, False)])
    assert follow("abcd", "ab") == ([3, 2], [], [])
    assert follow("abcd", "") == ([3, 2, 1, 0], [], [])


def test_swaps_put_rows_in_order() -> None:
    assert follow("abc", "cab") == ([], [], [(0, 2, True), (1, 2, True)])


def test_an_add_at_an_index_that_is_also_moved() -> None:
    assert follow("abc", "dca") == ([], [(1, "d")], [(0, 1, True), (1, 2, True)])


def test_a_request_that_is_renewed_is_removed_and_added() -> None:
    assert follow("abc", "abc", "b") == ([], [(1, "b")], [])
    assert follow("abc", "ac", "bc") == ([2], [(1, "c")], [])


def test_nothing_changed() -> None:
    batch: VllmBatch[str] = VllmBatch()
    assert batch.follow([]) is None
    batch.follow(["a", "b"])
    assert batch.follow(["a", "b"]) is None
    assert len(batch) == 2


def test_renewing_an_unknown_request_changes_nothing() -> None:
    batch: VllmBatch[str] = VllmBatch()
    batch.follow(["a"])
    batch.renew("b")
    assert batch.follow(["a"]) is None
    assert batch.follow(["a", "b"]) == Changes(added=[(1, "b")])


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


def cases_in(changes: Changes[Request] | None, before: Sequence[Request]) -> Iterator[str]:
    """Names of the error-prone cases that occur in these changes."""
    if changes is None:
        yield "nothing"
        return
    at = dict(enumerate(before)) | dict(changes.added)
    added = {index for index, _ in changes.added}
    for source, target, swaps in changes.moved:
        yield "swap" if swaps else "one way"
        if {source, target} & added and (added & set(range(len(before)))):
            yield "an add that replaces an index that is also moved"
        if swaps:
            if (at[source].sparse is None) != (at[target].sparse is None):
                yield "a swap with state on one side"
            at[source], at[target] = at[target], at[source]
        else:
            at[target] = at.pop(source)


def test_every_history_leaves_all_state_on_the_right_request() -> None:
    cases: Counter[str] = Counter()
    for history in histories(HISTORIES):
        batch: VllmBatch[Request] = VllmBatch()
        dense, sparse, before = Dense(), dict[int, int](), list[Request]()
        for requests, renewed in history:
            for request in renewed:
                batch.renew(request)
            changes = batch.follow(requests)
            cases.update(cases_in(changes, before))
            update = as_update(changes, len(requests))
            if update is not None:
                dense.update(update)
                fresh = {request for _, request, _, _ in update.added}
                assert renewed & set(requests) <= fresh
            process_dict_updates(sparse, update, lambda request, *_: request.sparse)
            assert dense.at == dict(enumerate(requests))
            assert sparse == {index: one.sparse for index, one in enumerate(requests) if one.sparse is not None}
            before = requests
    assert len(cases) == 5
    assert min(cases.values()) > HISTORIES / 2
