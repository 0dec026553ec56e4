"""Snapshots detect a change of an object at any depth."""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport_session.dialects.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


class Slotted:
    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = [1]


class Holds:
    def __init__(self) -> None:
        self.numbers, self.nan, self.flag = [1, 2.0, {3: [4]}], float("nan"), True
        self.tensor, self.array = torch.zeros(5), np.zeros(4)
        self.generator, self.random = torch.Generator(), random.Random(3)
        self.partial, self.queue, self.counter = functools.partial(max, [1]), deque([1]), Counter("aab")
        self.set, self.slotted, self.iterator = {1, 2}, Slotted(), iter([1, 2, 3])
        self.members = {Slotted()}
        self.method, self.function, self.itself = self.change, len, self

    def change(self) -> None:
        pass


def test_an_unchanged_object_is_equal() -> None:
    holds = Holds()
    assert Snapshot(holds) == Snapshot(holds)
    assert len(Snapshot(holds).tensors) == 1


CHANGES: list[Callable[[Any], object]] = [
    lambda it: it.numbers[2][3].append(5),
    lambda it: it.numbers.__setitem__(0, 1.0),
    lambda it: setattr(it, "flag", 1),
    lambda it: setattr(it, "numbers", (1, 2.0, {3: [4]})),
    lambda it: it.tensor.add_(0),
    lambda it: setattr(it, "tensor", torch.zeros(5)),
    lambda it: it.array.__setitem__(0, 1),
    lambda it: setattr(it, "array", it.array.reshape(2, 2)),
    lambda it: it.generator.manual_seed(9),
    lambda it: it.random.random(),
    lambda it: it.partial.args[0].append(2),
    lambda it: it.queue.append(1),
    lambda it: it.counter.update("b"),
    lambda it: it.set.add(3),
    lambda it: it.slotted.kept.append(2),
    lambda it: next(iter(it.members)).kept.append(2),
    lambda it: next(it.iterator),
    lambda it: setattr(it, "function", print),
    lambda it: setattr(it, "itself", None),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_object_is_not_equal(change: Callable[[Any], object]) -> None:
    holds = Holds()
    before = Snapshot(holds)
    change(holds)
    assert Snapshot(holds) != before


class Raises:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SystemError("no")


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "make", [threading.Lock, Raises, nested, lambda: list(range(200_000)), lambda: np.array([object()])]
)
def test_an_object_that_cannot_be_inspected_equals_nothing(make: Callable[[], object]) -> None:
    holds = [make()]
    snapshot = Snapshot(holds)
    assert snapshot != snapshot  # noqa: PLR0124
    assert snapshot != Snapshot(holds)
