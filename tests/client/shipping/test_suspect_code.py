"""Registering a processor with lines that are probably mistakes: a warning names each."""

# ruff: noqa: PLW0603, PLW2901
from __future__ import annotations

import warnings
from typing import Any

import pytest

from logitport import Client, CustomLogitProcessor, EditProcessor, NotCapturable, ProcessorWarning
from logitport import TensorProcessor as Base

CALLS = 0


class Halves(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row in logits:
            row = row / 2
        return logits


class CountsGlobally(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        global CALLS
        CALLS += 1
        edits.bias([1], float(CALLS))


class CountsOnTheInstance(CustomLogitProcessor):
    """SGLang's contract permits it; a server sees such state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        self.calls += 1
        return logits + self.calls


class Frozen(Base):
    def __init__(self) -> None:
        self.n = 0

    def process(self, logits: Any, params: Any, history: Any) -> Any:
        self.n += 1
        return logits + self.n


@pytest.mark.parametrize(
    ("processor", "line"),
    [
        (Halves, "`row = row / 2`: the new value of 'row' is never used"),
        (CountsGlobally, "`CALLS += 1`: a call changes a variable that all requests share"),
    ],
)
@pytest.mark.parametrize("lift", [True, False])
def test_registering_names_the_line(client: Client, processor: Any, line: str, lift: bool) -> None:
    with pytest.warns(ProcessorWarning) as warned:
        client.register(processor, lift=lift)
    (warning,) = warned
    assert str(warning.message).startswith(f"{__file__}:")
    assert line in str(warning.message)
    assert warning.filename == __file__
    with pytest.warns(ProcessorWarning):  # from the payload that was made before
        client.register(processor, lift=lift)


def test_registering_at_one_server_names_the_line(client: Client) -> None:
    with pytest.warns(ProcessorWarning, match="CALLS") as warned:
        client.servers()[0].register(CountsGlobally)
    (warning,) = warned
    assert warning.filename == __file__


@pytest.mark.slow
def test_state_of_an_instance_is_permitted_in_code_and_refused_in_a_program(client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "self.calls += 1" in client.register(CountsOnTheInstance, lift=True).not_lifted
    with pytest.raises(NotCapturable, match=r"test_suspect_code.py:\d+: `self.n \+= 1`: self.n changes in a call"):
        client.register(Frozen, lift=True)
