"""State of a processor between calls."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from logitport_programs.capturing.processor_state import State

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


def add_in_place(holder) -> None:
    holder.value += 1


def put(value):
    return lambda holder: setattr(holder, "value", value)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda holder: holder.value.append(2)),
        ({str(number): number for number in range(100)}, lambda holder: holder.value.update({"7": 8})),
        (torch.zeros(2), add_in_place),
        (np.zeros(2), add_in_place),
        (1, put(1.0)),
        (Inner(), lambda holder: holder.value.list.append(1)),
        (["a", 1], put(["a", True])),
        (["a", 1], put(["a", 2])),
        ({"a": 1}, put({"a": True})),
        ({"a": 1, "b": 2}, put({"a": 1})),
        ({"a", "b"}, put({"a"})),
        (("a",), put(("b",))),
    ],
)
def test_attributes_that_change(value, change) -> None:
    holder = Holder(value)
    state = State(holder, Holder.__call__)
    holder.value = copy.deepcopy(value)
    assert state.changed() is None
    change(holder)
    assert state.changed() == "self.value"
    holder.other = 1
    assert state.changed() == "self.other"


def test_variables_of_the_class_the_module_the_closure_and_of_helper_functions() -> None:
    holder, function, constant = Holder(1), closure(1), closure("a")

    def calls_it(output_ids, logits):
        return [constant(output_ids, logits) for _ in range(2)]

    states = [State(holder, Holder.__call__), State(function, function), State(calls_it, calls_it)]
    Holder.shared.append(2)
    assert states[0].changed() == "Holder.shared"
    Holder.shared.pop()
    calls_it([], None)
    assert states[2].changed() == "_COUNTER"
    del _COUNTER[1:]
    assert states[2].changed() is None
    function([], None)
    _COUNTER.pop()
    assert states[1].changed() == "value"


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
