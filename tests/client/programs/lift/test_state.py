"""What a processor may keep between calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitport.programs.lift.state import difference, state_of

_COUNTER = [0]


def closure(value):
    def function(output_ids, logits):
        nonlocal value
        _COUNTER.append(1)
        value = value + 1 if isinstance(value, int) else value
        return logits

    return function


class Holder:
    shared = [1]

    def __init__(self, value):
        self.value = value

    def __call__(self, input_ids, logits):
        return logits


class Inner:
    def __init__(self):
        self.list = [float("nan")]


def test_nothing_changes() -> None:
    values = [
        1,
        "a",
        None,
        float("nan"),
        torch.tensor([float("nan"), 1]),
        np.arange(3),
        {"a": [1, (2,)]},
        Inner(),
        object(),
    ]
    for value in values:
        holder = Holder(value)
        before = state_of(holder, Holder.__call__)
        assert difference(before, state_of(holder, Holder.__call__)) is None, value


def add_in_place(value) -> None:
    value += 1


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda holder: holder.value.append(2)),
        ({"a": 1}, lambda holder: holder.value.update(b=1)),
        (torch.zeros(2), lambda holder: add_in_place(holder.value)),
        (np.zeros(2), lambda holder: add_in_place(holder.value)),
        (1, lambda holder: setattr(holder, "value", 2)),
        (1, lambda holder: setattr(holder, "value", 1.0)),
        (Inner(), lambda holder: holder.value.list.append(1)),
    ],
)
def test_attributes_that_change(value, change) -> None:
    holder = Holder(value)
    before = state_of(holder, Holder.__call__)
    change(holder)
    assert difference(before, state_of(holder, Holder.__call__)) == "self.value"


def test_a_new_attribute() -> None:
    holder = Holder(1)
    before = state_of(holder, Holder.__call__)
    holder.other = 1
    assert difference(before, state_of(holder, Holder.__call__)) == "self.other"


def test_variables_of_the_class_the_module_and_the_closure() -> None:
    holder, function, constant = Holder(1), closure(1), closure("a")
    before = state_of(holder, Holder.__call__), state_of(function, function), state_of(constant, constant)
    Holder.shared.append(2)
    assert difference(before[0], state_of(holder, Holder.__call__)) == "Holder.shared"
    constant([], None)
    assert difference(before[2], state_of(constant, constant)) == "_COUNTER"
    _COUNTER.pop()
    function([], None)
    _COUNTER.pop()
    assert difference(before[1], state_of(function, function)) == "value"
