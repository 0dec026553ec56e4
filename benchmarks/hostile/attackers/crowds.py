"""Many tenants, and many calls: they take all workers, and all threads for calls."""

from __future__ import annotations

import time

import torch

from benchmarks.hostile.attackers.base import PRINCIPALS, VOCAB_SIZE, Attacker, Engine, numbered
from logitport import EditProcessor, EditRequest, Request, RowEdits

_TENANTS = 63
_CALLS = 256
_TENANTS_OF_CALLS = 8
_SLEEP_SECONDS = 1.5


class Denies(EditProcessor):
    """Harmless."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class Sleeps(EditProcessor):
    """Takes less than the deadline of a call."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(_SLEEP_SECONDS)


class AllWorkers(Attacker):
    """The server has 64 by default."""

    name = "63 tenants"
    does = f"{_TENANTS} tenants with a class each, in one session, at every step"

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        for number in range(_TENANTS):
            try:
                self._engine.add(numbered(Denies, number), tenant=f"tenant {number}")
            except Exception as error:  # noqa: BLE001 - counted; the others still take workers
                self.counts[type(error).__name__] += 1

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step()


class AllThreads(Attacker):
    """As many as the server has threads for calls; each principal has as many as it may."""

    name = "256 slow calls"
    does = f"{_CALLS} stateless calls in flight whose processors sleep {_SLEEP_SECONDS} s"
    threads = _CALLS

    def attack(self, thread: int) -> None:
        request = Request([1], processors=[(Sleeps, {})], tenant=f"tenant {thread // PRINCIPALS % _TENANTS_OF_CALLS}")
        result = self.client(thread % PRINCIPALS).apply(torch.zeros(1, VOCAB_SIZE), [request], check=False)
        self.counts["failed rows"] += len(result.failures)


ATTACKERS: tuple[type[Attacker], ...] = (AllWorkers, AllThreads)
