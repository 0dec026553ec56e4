"""The shipped classes of the storm: those that do harm, and good ones, which `tests.storm.reference` has, too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from benchmarks.hostile.attackers import processors

from logitport import CustomLogitProcessor, EditProcessor, Float, TensorProcessor
from logitport.shipping import serialize
from tests.toy_processors import AddCallCount

if TYPE_CHECKING:
    import torch

    from logitport import EditRequest, RowEdits


class Rest(EditProcessor):
    """Reads no logits, and keeps a state that follows from the history."""

    def start(self, request: EditRequest) -> None:
        request.state = np.bincount(request.history.token_ids % 3, minlength=3).tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state[token_id % 3] += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        most = request.state.index(max(request.state))
        edits.deny(range(most, request.vocab_size, request.params["stride"]))
        edits.bias([most], 2.0)


class DenyLast(EditProcessor):
    """Reads no logits, and keeps no state."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        last = request.history.last_output
        if last is not None:
            edits.deny([last])


class Slow(DenyLast):
    """Good, and slow."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(request.params["seconds"])
        super().edit(request, edits)


class Scale(CustomLogitProcessor):
    """Reads logits, and keeps no state."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            logits[row] *= params["factor"]
        return logits


class ScaleProgram(TensorProcessor):
    """Becomes a program."""

    params: ClassVar = {"factor": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: Any) -> Any:
        return logits * params.factor[:, None]


class Loops(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        while True:
            pass


class NaN(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        print("not a number")  # noqa: T201 - kept by the server
        return logits.fill_(float("nan"))


class HangsInInit(DenyLast):
    def __init__(self) -> None:
        time.sleep(3600)


VERSIONS = 3  # of classes that authors register
GOOD: dict[str, type] = {each.__name__: each for each in (Rest, DenyLast, Slow, Scale, AddCallCount, ScaleProgram)}
BAD: dict[str, type] = {each.__name__: each for each in (Loops, NaN, HangsInInit)}
BAD |= {
    name: each
    for name, each in vars(processors).items()
    if isinstance(each, type) and each.__module__ == processors.__name__
}


_payloads: dict[tuple[str, int], str] = {}


def payload(name: str, number: int = 0) -> str:
    """Serialize a class; each number has a digest of its own, and so a trust domain of its own."""
    if (name, number) not in _payloads:
        base = {**GOOD, **BAD}[name]
        made = type(f"{name}{number}", (base,), {"__module__": base.__module__, "number": number}) if number else base
        _payloads[name, number] = serialize(made)
    return _payloads[name, number]


def programs() -> dict[tuple[str, int], str]:
    """The payloads of programs: capturing one takes seconds, so that only one process does it."""
    return {("ScaleProgram", number): payload("ScaleProgram", number) for number in range(VERSIONS)}


def use(payloads: dict[tuple[str, int], str]) -> None:
    """Use payloads that another process has made."""
    _payloads.update(payloads)
