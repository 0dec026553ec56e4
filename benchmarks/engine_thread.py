"""Time of the engine's own thread in steps with replies that arrive during the forward pass."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import Service
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine, Findings
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.contestants import Transport
    from benchmarks.measure import Ratio
    from benchmarks.servers import Server
    from logitport import Client

_TRANSPORTS: tuple[Transport, ...] = ("local", "grpc")
_STEPS = 40
_WARM_UP = 5


def engine_thread(_: Server, client: Client) -> Findings:
    """Processor time of `Session.step` and `PendingStep.apply`, with both transports."""
    return Findings(
        [],
        [
            BarLine(f"engine's thread, step + apply, 64 rows, few ids, {name}", _time_of(client, name), 0.12, "ms")
            for name in _TRANSPORTS
        ],
    )


def _time_of(client: Client, transport: Transport) -> Ratio:
    """Milliseconds a step, by round."""
    workload = Workload()
    service = Service(client, workload, transport)
    fresh, logits = workload.logits().numpy(), workload.logits()
    forward, clock = forwards.sleeping(10), time.thread_time_ns
    spent = []
    gc.collect()
    gc.freeze()
    for token_ids in workload.sampled(_WARM_UP + ROUNDS * _STEPS):
        np.copyto(logits.numpy(), fresh)  # as a model does, with one thread
        new_token_ids = {handle: (token_id,) for handle, token_id in zip(service.handles, token_ids, strict=True)}
        started = clock()
        pending = service.session.step(new_token_ids)
        sent = clock()
        forward()
        ready = clock()
        pending.apply(logits)
        spent.append(clock() - ready + sent - started)
    gc.unfreeze()
    service.close()
    return over_rounds(np.median(np.reshape(spent[_WARM_UP:], (ROUNDS, _STEPS)), axis=1) / 1e6)
