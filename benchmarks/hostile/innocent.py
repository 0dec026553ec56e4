"""The innocent engine, a process: `python -m benchmarks.hostile.innocent TARGET TRANSPORT`.

Each command runs one block in the session that it keeps: it admits the requests of `reference.WORKLOAD`, runs their
steps, compares every row with the reference, and removes the requests. A step is timed from the sampled ids to the
processed logits, without a forward pass.
"""

from __future__ import annotations

import gc
import sys
import time
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.hostile.helper import commands, reply
from benchmarks.hostile.reference import WORKLOAD, Reference
from logitport import Client, LogitportError, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session import Handle, Session

_TIMEOUT_SECONDS = 60.0
_DISTINCT_STEPS = 1000


class Block:
    """One block of steps.

    Attributes:
        seconds: duration of each step.
        admission_seconds: longest duration of the admission of a request.
        wrong: rows that differ from the reference.
        lost: the error of each request that was refused or has failed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reference = Reference()
        self._fresh = WORKLOAD.logits()
        self._handles: dict[int, Handle] = {}
        self.seconds: list[float] = []
        self.admission_seconds = 0.0
        self.wrong = 0
        self.lost: list[str] = []

    def run(self, steps: int, least_seconds: float, seconds: float) -> None:
        """Run so many steps and for `least_seconds`, but not longer than `seconds`."""
        self._admit()
        began = time.monotonic()
        token_ids: Sequence[int] | None = None  # a request's first step has no new ids
        for number, sampled in enumerate(cycle(WORKLOAD.sampled(_DISTINCT_STEPS))):
            elapsed = time.monotonic() - began
            if not self._handles or elapsed > seconds or (number >= steps and elapsed > least_seconds):
                break
            if token_ids is not None:
                self._reference.append(list(token_ids))
            self._step(token_ids)
            token_ids = sampled
        for handle in self._handles.values():
            self._session.remove(handle)

    def _admit(self) -> None:
        prompt = WORKLOAD.history // 2
        for row, ids in enumerate(WORKLOAD.histories().tolist()):
            kind = WORKLOAD.kind(row)
            assert kind is not None
            began = time.perf_counter()
            try:
                self._handles[row] = self._session.add(
                    Request(ids[:prompt], ids[prompt:], [(kind.ours, kind.params)], f"row {row}")
                )
            except LogitportError as error:
                self._lose(row, error)
            self.admission_seconds = max(self.admission_seconds, time.perf_counter() - began)

    def _step(self, token_ids: Sequence[int] | None) -> None:
        rows = list(self._handles)
        logits = self._fresh[rows]
        new = {self._handles[row]: () if token_ids is None else (token_ids[row],) for row in rows}
        began = time.perf_counter()
        try:
            result = self._session.step(new).apply(logits, check=False)
        except LogitportError as error:
            for row in rows:
                self._lose(row, error)
            return
        finally:
            self.seconds.append(time.perf_counter() - began)
        expected = self._reference.expected(self._fresh)
        for row, processed in zip(rows, logits, strict=True):
            if (failure := result.failures.get(self._handles[row])) is not None:
                self._lose(row, failure)
            else:
                self.wrong += not torch.equal(processed, expected[row])

    def _lose(self, row: int, error: LogitportError) -> None:
        self.lost.append(f"row {row}: {type(error).__name__}: {error}"[:300])
        self._handles.pop(row, None)


def run_block(session: Session, **duration: Any) -> dict[str, Any]:
    """Run a block of this duration. Returns its result as JSON."""
    block = Block(session)
    gc.collect()
    gc.disable()
    try:
        block.run(**duration)
    except LogitportError as error:  # the session as a whole
        block.lost += [f"{type(error).__name__}: {error}"[:300]] * (WORKLOAD.rows - len(block.lost))
    gc.enable()
    return {
        "seconds": block.seconds,
        "admission_seconds": block.admission_seconds,
        "wrong": block.wrong,
        "lost": block.lost,
    }


def main() -> None:
    target, transport = sys.argv[1:]
    torch.set_num_threads(1)
    opening: dict[str, Any] = {"vocab_size": WORKLOAD.vocab_size, "dtype": WORKLOAD.dtype, "transport": transport}
    with Client(target, timeout=_TIMEOUT_SECONDS) as client, client.session(**opening) as session:
        for command in commands():
            reply(**run_block(session, **command))


if __name__ == "__main__":
    main()
