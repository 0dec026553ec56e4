"""Steps of engines' hooks ÷ steps of a session: `python -m benchmarks.engine_hooks`, and `publish`.

The engines are those of `tests/engine_batches.py`: their batches as the hooks see them, without a model. All get the
same ids, in turn, each with its own session. A step is what blocks the engine: the hook's calls before and after the
forward pass, the session's step included.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

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
_REPLACED_ROWS = 64


def run() -> Report:
    """Run all parts."""
    return suite.run({"embedded": lambda: _steady("embedded"), "local": lambda: _steady("local"), "changes": _changes})


def _steady(where: str) -> Iterator[BarLine]:
    """Steps of the same requests."""
    with _connected(where) as client:
        for rows in (8, 64, 256):
            seconds = _race(client, [SessionRows, *_BARS], rows, replaces=False)
            reference = seconds[SessionRows]
            for engine, bar in _BARS.items():
                compared = ratio(seconds[engine], reference, LOWER_QUARTILE)
                yield BarLine(f"{where}, {rows} rows: a step, {engine.name} ÷ a session's", compared, bar)
            case = f"{where}, {rows} rows: a session's step"
            yield BarLine(case, over_rounds(np.quantile(reference, LOWER_QUARTILE, axis=1) * 1e6), None, "µs")


def _changes() -> Iterator[BarLine]:
    """Steps in each of which a request ends and another one begins."""
    for where, bar in (("local", 2.0), ("grpc", 3.0)):
        with _connected(where) as client:
            steady = _race(client, [SessionRows], _REPLACED_ROWS, replaces=False)[SessionRows]
            for engine in _BARS:
                seconds = _race(client, [engine], _REPLACED_ROWS, replaces=True)[engine]
                case = f"{where}, {_REPLACED_ROWS} rows, one of them replaced: a step, {engine.name} ÷ a session's"
                yield BarLine(case, ratio(seconds, steady, LOWER_QUARTILE), bar)


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


def _race(
    client: Client, engines: Sequence[type[EngineRows]], rows: int, *, replaces: bool
) -> dict[type[EngineRows], NDArray[np.float64]]:
    """Seconds of each step, float64[rounds, steps], of these engines in turn."""
    draw = np.random.default_rng(rows)
    logits = torch.zeros(rows, _VOCAB_SIZE)
    table = np.empty((len(engines), _WARM_UP + ROUNDS * _STEPS))
    with ExitStack() as stack:
        running = []
        for engine in engines:  # one after the other: each patches its engine's modules
            running.append(stack.enter_context(engine(client, _CHAIN, rows, _VOCAB_SIZE)))
            running[-1].step(logits)
        gc.collect()
        gc.freeze()
        for step in range(table.shape[1]):
            token_ids = draw.integers(100, _VOCAB_SIZE, rows).tolist()
            order = list(range(len(engines)))
            for index in order if step % 2 else reversed(order):
                if replaces:
                    running[index].replace(step % rows)
                running[index].append(token_ids)
                began = time.perf_counter()
                running[index].step(logits)
                table[index, step] = time.perf_counter() - began
        gc.unfreeze()
    measured = table[:, _WARM_UP:].reshape(len(engines), ROUNDS, _STEPS)
    return dict(zip(engines, measured, strict=True))


if __name__ == "__main__":
    suite.main("engine_hooks", __doc__, "hooks", run)
