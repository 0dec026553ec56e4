"""Steps of engines' hooks ÷ steps of a session: `python -m benchmarks.engine_hooks`, and `publish`.

The engines are those of `tests/engine_batches.py`: their batches as the hooks see them, without a model. All get the
same ids, in turn, each with its own session. A step is what blocks the engine: the hook's calls before and after the
forward pass, the session's step included. Where requests begin and end, the forward pass takes a few milliseconds,
which are not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import suite
from benchmarks.measure import LOWER_QUARTILE, ROUNDS, over_rounds, ratio
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.servers import logitport_server
from logitport import Client
from tests.engine_batches import (
    AsynchronousRows,
    EngineRows,
    FirstRunnerRows,
    SchedulerRows,
    SecondRunnerRows,
    SessionRows,
)

_VOCAB_SIZE = 32_000
_CHAIN = [["disallowed_tokens", {"token_ids": list(range(2, 34))}]]
_STEPS = 40
_WARM_UP = 20
_BARS: dict[type[EngineRows], float | None] = {
    FirstRunnerRows: 1.4,
    AsynchronousRows: None,
    SecondRunnerRows: 2.0,
    SchedulerRows: 1.5,
}
# Of a forward pass, where requests begin and end: the server needs less.
_FORWARD_SECONDS = 0.005


class Case(NamedTuple):
    """An engine to measure.

    Attributes:
        engine: the engine.
        replaces: whether one of its requests ends and another one begins in each step.
        forward_seconds: of its forward pass.
    """

    engine: type[EngineRows]
    replaces: bool = False
    forward_seconds: float = 0.0


def run() -> Report:
    """Run all parts."""
    return suite.run({"embedded": lambda: _steady("embedded"), "local": lambda: _steady("local"), "changes": _changes})


def _steady(where: str) -> Iterator[BarLine]:
    """Steps of the same requests."""
    with _connected(where) as client:
        for rows in (8, 64, 256):
            seconds = _race(client, [Case(engine) for engine in (SessionRows, *_BARS)], rows)
            reference = seconds[Case(SessionRows)]
            for engine, bar in _BARS.items():
                compared = ratio(seconds[Case(engine)], reference, LOWER_QUARTILE)
                yield BarLine(f"{where}, {rows} rows: a step, {engine.name} ÷ a session's", compared, bar)
            case = f"{where}, {rows} rows: a session's step"
            yield BarLine(case, over_rounds(np.quantile(reference, LOWER_QUARTILE, axis=1) * 1e6), None, "µs")


def _changes() -> Iterator[BarLine]:
    """Steps in each of which a request ends and another one begins, and steps of the same engine without that."""
    for where, bar in (("local", 2.0), ("grpc", 3.0)):
        with _connected(where) as client:
            for engine in _BARS:
                seconds = _race(
                    client, [Case(engine, False, _FORWARD_SECONDS), Case(engine, True, _FORWARD_SECONDS)], 64
                )
                steady, changed = seconds.values()
                case = f"{where}, 64 rows, one of them replaced: a step, {engine.name} ÷ its step without that"
                yield BarLine(case, ratio(changed, steady, LOWER_QUARTILE), bar)
                case = f"{where}, 64 rows: a step, {engine.name}, beside the forward pass"
                yield BarLine(case, over_rounds(np.quantile(steady, LOWER_QUARTILE, axis=1) * 1e6), None, "µs")


@contextmanager
def _connected(where: str) -> Iterator[Client]:
    with ExitStack() as stack:
        if where == "embedded":
            yield stack.enter_context(Client.embedded())
        else:
            server = stack.enter_context(logitport_server())
            client = stack.enter_context(Client(server.target))
            client.session = partial(client.session, transport="grpc" if where == "grpc" else "auto")  # type: ignore[method-assign]
            yield client


def _race(client: Client, cases: Sequence[Case], rows: int) -> dict[Case, NDArray[np.float64]]:
    """Seconds of each step, float64[rounds, steps], of these cases in turn."""
    draw = np.random.default_rng(rows)
    logits = torch.zeros(rows, _VOCAB_SIZE)
    table = np.empty((len(cases), _WARM_UP + ROUNDS * _STEPS))
    with ExitStack() as stack:
        running = []
        for case in cases:  # one after the other: each patches its engine's modules
            running.append(stack.enter_context(case.engine(client, _CHAIN, rows, _VOCAB_SIZE)))
            running[-1].step(logits)
        gc.collect()
        gc.freeze()
        for step in range(table.shape[1]):
            token_ids = draw.integers(100, _VOCAB_SIZE, rows).tolist()
            order = list(range(len(cases)))
            for index in order if step % 2 else reversed(order):
                if cases[index].replaces:
                    running[index].replace(step % rows)
                running[index].append(token_ids)
                forward = _Forward(cases[index].forward_seconds)
                began = time.perf_counter()
                running[index].step(logits, forward)
                table[index, step] = time.perf_counter() - began - forward.taken
        gc.unfreeze()
    measured = table[:, _WARM_UP:].reshape(len(cases), ROUNDS, _STEPS)
    return dict(zip(cases, measured, strict=True))


class _Forward:
    """A forward pass, during which the engine's thread does nothing.

    Attributes:
        taken: seconds that it took.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.taken = 0.0

    def __call__(self) -> None:
        if self._seconds:
            began = time.perf_counter()
            time.sleep(self._seconds)
            self.taken = time.perf_counter() - began


if __name__ == "__main__":
    suite.main("engine_hooks", __doc__, "hooks", run)
