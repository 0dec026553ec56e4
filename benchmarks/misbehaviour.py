"""A shipped processor that never returns: how late that is detected, and the time of its worker's next step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.measure import ROUNDS, Ratio
from benchmarks.records import BarLine, Findings
from benchmarks.servers import connected
from logitport import EditProcessor, Request, RequestsFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.servers import Server
    from logitport import Client, EditRequest, LogitportError, RowEdits
    from logitport.session import Session
    from logitport.session.frames import Handle

_DEADLINE_SECONDS = 1.0
_HANGS_A_ROUND = 2
_VOCAB_SIZE = 32_000
_GO = 7


class Hangs(EditProcessor):
    """Denies an id; loops forever after a given id."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        while request.history.last_output == _GO:
            pass
        edits.deny([1])


def hangs(_: Server, __: Client) -> Findings:
    """One processor loops while another works; then another request of its worker runs a step."""
    options = ("--processor-timeout-seconds", str(_DEADLINE_SECONDS), "--quarantine-after", "1000")
    with (
        connected("--device", "cpu", *options) as (_, client),
        client.session(vocab_size=_VOCAB_SIZE, transport="local") as session,
    ):
        innocent = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})]))
        seconds = np.array([[_hang(session, innocent) for _ in range(_HANGS_A_ROUND)] for _ in range(ROUNDS)])
    late, recovered = (_over_rounds(seconds[..., column] * 1e3) for column in (0, 1))
    return Findings(
        [],
        [
            BarLine("a processor that loops: noticed after its deadline", late, 100.0, "ms"),
            BarLine("a worker that was lost: the next step, its state built again", recovered, None, "ms"),
        ],
    )


def _hang(session: Session, innocent: Handle) -> tuple[float, float]:
    """Seconds from the deadline to the failure, and of the next step of a request that shares the worker."""
    bad, other = (session.add(Request([1], processors=[(Hangs, {})])) for _ in range(2))
    logits = torch.zeros(3, _VOCAB_SIZE)
    session.step({innocent: [], bad: [], other: []}).apply(logits)
    failures: Mapping[Handle, LogitportError] = {}
    began = time.perf_counter()
    try:
        session.step({innocent: [3], bad: [_GO]}).apply(logits[:2])
    except RequestsFailed as error:
        failures = error.failures
    late = time.perf_counter() - began - _DEADLINE_SECONDS
    assert list(failures) == [bad]
    session.remove(bad)
    began = time.perf_counter()
    session.step({innocent: [3], other: [3]}).apply(logits[:2])
    recovered = time.perf_counter() - began
    session.remove(other)
    return late, recovered


def _over_rounds(milliseconds: np.ndarray) -> Ratio:
    """The median, lowest and highest of the rounds' worst values."""
    worst = milliseconds.max(axis=1)
    return Ratio(float(np.median(worst)), float(worst.min()), float(worst.max()))
