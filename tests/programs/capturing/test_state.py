"""State of a processor between calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitport_programs.capturing.state import State

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
        state = State(holder, Holder.__call__)
        assert state.changed() is None, value


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
    state = State(holder, Holder.__call__)
    change(holder)
    assert state.changed() == "self.value"


def test_a_new_attribute() -> None:
    holder = Holder(1)
    state = State(holder, Holder.__call__)
    holder.other = 1
    assert state.changed() == "self.other"


def test_variables_of_the_class_the_module_and_the_closure() -> None:
    holder, function, constant = Holder(1), closure(1), closure("a")
    states = [State(holder, Holder.__call__), State(function, function), State(constant, constant)]
    Holder.shared.append(2)
    assert states[0].changed() == "Holder.shared"
    Holder.shared.pop()
    constant([], None)
    assert states[2].changed() == "_COUNTER"
    _COUNTER.pop()
    assert states[2].changed() is None
    function([], None)
    _COUNTER.pop()
    assert states[1].changed() == "value"


def test_variables_of_helper_functions() -> None:
    function = closure("a")

    def calls_it(output_ids, logits):
        return [function(output_ids, logits) for _ in range(2)]

    state = State(calls_it, calls_it)
    calls_it([], None)
    assert state.changed() == "_COUNTER"
    del _COUNTER[1:]


def test_isolated_calls_leave_no_trace() -> None:
    holder, function = Holder(1), closure(1)
    shared, counter = Holder.shared, _COUNTER
    states = [State(holder, Holder.__call__), State(function, function)]
    with states[0].isolated(), states[1].isolated():
        Holder.shared.append(2)
        Holder.added = 3  # type: ignore[attr-defined]
        function([], None)
        assert [state.changed() for state in states] == ["Holder.added", "_COUNTER"]
    assert [state.changed() for state in states] == [None, None]
    assert Holder.shared is shared == [1]
    assert counter is _COUNTER
    assert _COUNTER == [0]
    assert not hasattr(Holder, "added")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a", 1], ["a", True]),
        (["a", 1], ["a", 1.0]),
        (["a", 1], ["a", 2]),
        ({"a": 1}, {"a": True}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a", "b"}, {"a"}),
        (("a",), ("b",)),
    ],
)
def test_containers_of_constants(before, after) -> None:
    holder = Holder(before)
    state = State(holder, Holder.__call__)
    holder.value = type(before)(before)
    assert state.changed() is None
    holder.value = after
    assert state.changed() == "self.value"


def test_a_container_of_constants_that_changes_in_place() -> None:
    holder = Holder({str(number): number for number in range(100)})
    state = State(holder, Holder.__call__)
    holder.value["7"] = 8
    assert state.changed() == "self.value"
