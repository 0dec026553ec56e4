"""The innocent engine, which runs as a `Helper`.

Each command runs one block in the session that it keeps: it admits the requests of WORKLOAD, runs their steps, compares
every row with the reference, which is computed without the service, and removes the requests. A step is timed from the
sampled ids to the processed logits, without a forward pass.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.helper import commands
from benchmarks.kinds import BAN, NGRAM, TEMPERATURE, THINKING, distinct
from benchmarks.workloads import Workload
from logitport import Client, LogitportError, Request
from logitport.session import Handle, Session

_TIMEOUT_SECONDS = 60.0
_DISTINCT_STEPS = 1000
(SHIPPED_BAN,) = distinct(1)
# Eight rows of built-ins, one shipped processor that reads no logits, and one that does.
WORKLOAD = Workload(
    rows=10,
    history=64,
    vocab_size=32_000,
    kinds=(*(THINKING, NGRAM, BAN) * 2, THINKING, NGRAM, SHIPPED_BAN, TEMPERATURE),
)
_BANNED = torch.tensor(BAN.params["token_ids"])
_N = NGRAM.params["ngram_size"]


class Reference:
    """The histories of all rows, and the logits that they must get."""

    def __init__(self) -> None:
        self._histories = WORKLOAD.histories().tolist()
        self._continuations: list[dict[tuple[int, ...], set[int]]] = [defaultdict(set) for _ in self._histories]
        for row, history in enumerate(self._histories):
            for end in range(_N, len(history) + 1):
                self._note(row, history[:end])

    def append(self, token_ids: list[int]) -> None:
        """Extend the history of each row."""
        for row, token_id in enumerate(token_ids):
            self._histories[row].append(token_id)
            self._note(row, self._histories[row])

    def expected(self, logits: torch.Tensor) -> torch.Tensor:
        """The processed logits of all rows."""
        expected = logits.clone()
        for row, history in enumerate(self._histories):
            kind = WORKLOAD.kind(row)
            if kind is NGRAM:
                denied = self._continuations[row].get(tuple(history[1 - _N :]), set())
                expected[row, sorted(denied)] = -torch.inf
            elif kind is BAN or kind is SHIPPED_BAN:
                expected[row, _BANNED] = -torch.inf
            elif kind is TEMPERATURE:
                expected[row] /= TEMPERATURE.params["temperature"]
        return expected

    def _note(self, row: int, history: list[int]) -> None:
        *begin, last = history[-_N:]
        self._continuations[row][tuple(begin)].add(last)


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


def run(pipe: Connection, target: str, transport: str, token: str) -> None:
    """Run a block of the duration that each command gives. Replies with its `Block`'s attributes."""
    torch.set_num_threads(1)
    opening: dict[str, Any] = {"vocab_size": WORKLOAD.vocab_size, "dtype": WORKLOAD.dtype, "transport": transport}
    with (
        Client(target, token=token, timeout=_TIMEOUT_SECONDS) as client,
        client.session(**opening) as session,
    ):
        for duration in commands(pipe):
            block = Block(session)
            gc.collect()
            gc.disable()
            try:
                block.run(**duration)
            except LogitportError as error:  # the session as a whole
                block.lost += [f"{type(error).__name__}: {error}"[:300]] * (WORKLOAD.rows - len(block.lost))
            gc.enable()
            pipe.send((block.seconds, block.admission_seconds, block.wrong, block.lost))
