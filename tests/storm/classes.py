"""The shipped classes of the storm. `tests.storm.reference` has what the good ones must do."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from logitport import CustomLogitProcessor, EditProcessor, Float, TensorProcessor
from logitport.shipping import serialize

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class AddCallCount(CustomLogitProcessor):
    """Reads logits, and keeps a state that does not follow from the history."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            params["calls"] = params.get("calls", 0) + 1
            logits[row] += params["calls"]
        return logits


class ScaleProgram(TensorProcessor):
    """Becomes a program."""

    params: ClassVar = {"factor": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: Any) -> Any:
        return logits * params.factor[:, None]


class Raises(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        print("about to raise")  # noqa: T201 - kept by the server
        raise ValueError("fails on purpose")


class Loops(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        while True:
            pass


class Exits(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(1)


class Forks(DenyLast):
    """Starts processes and threads until it may not."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        with suppress(OSError):
            for _ in range(64):
                os.fork()
        with suppress(RuntimeError):
            for _ in range(64):
                threading.Thread(target=time.sleep, args=(1,), daemon=True).start()


class EatsMemory(DenyLast):
    """Keeps all memory that it gets."""

    def start(self, request: EditRequest) -> None:
        self.kept: list[Any] = []

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for _ in range(8):
            self.kept.append(bytearray(32 << 20))


class DeniesAll(EditProcessor):
    """Returns as many edits as it can."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for _ in range(400):
            edits.deny(np.arange(request.vocab_size, dtype=np.int32))


class Lies(EditProcessor):
    """Replaces the encoder of its worker by one of a large reply about rows that the call does not have."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        from logitport_server.worker import messages

        rows = itertools.islice(itertools.count(), 60_000)
        entries = b",".join(b'"%d":{"code":13,"message":"","trace":""}' % row for row in rows)
        messages.encode = lambda reply: b'{"type":"EditReply","failed":{' + entries + b"}}"


class NaN(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.fill_(float("nan"))


class SlowToStart(DenyLast):
    def start(self, request: EditRequest) -> None:
        time.sleep(1.5)


class SlowToInitialize(DenyLast):
    def __init__(self) -> None:
        time.sleep(3)


class SlowToValidate(DenyLast):
    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        time.sleep(3)


class HangsInInit(DenyLast):
    def __init__(self) -> None:
        time.sleep(3600)


VERSIONS = 3  # of classes that authors register
GOOD: dict[str, type] = {each.__name__: each for each in (Rest, DenyLast, Slow, Scale, AddCallCount, ScaleProgram)}
BAD: dict[str, type] = {
    each.__name__: each
    for each in (
        Raises,
        Loops,
        Exits,
        Forks,
        EatsMemory,
        DeniesAll,
        Lies,
        NaN,
        SlowToStart,
        SlowToInitialize,
        SlowToValidate,
        HangsInInit,
    )
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
