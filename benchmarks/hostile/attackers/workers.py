"""Workers that use all that the sandbox allows."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import Any, ClassVar

from benchmarks.hostile.attackers.base import Attacker, Engine
from logitport import EditProcessor, EditRequest, RowEdits

_STEP_SECONDS = 0.5
_THREADS = 64  # more than a worker may start
_ALLOCATION_BYTES = 64 << 20


class Spins(EditProcessor):
    """Starts threads that go on after the call. Hashing releases Python's lock."""

    def start(self, request: EditRequest) -> None:
        def spin() -> None:
            while True:
                hashlib.sha256(bytes(1 << 20))

        for _ in range(_THREADS):
            try:
                threading.Thread(target=spin, daemon=True).start()
            except RuntimeError:
                return

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class Allocates(EditProcessor):
    """Allocates until it may not, and keeps all of it."""

    def start(self, request: EditRequest) -> None:
        self.kept: list[Any] = []

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        try:
            for _ in range(4):
                self.kept.append(bytearray(_ALLOCATION_BYTES))
        except MemoryError:
            pass
        edits.deny([1])


class Forks(EditProcessor):
    """Starts processes and threads until it may not, at every call."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for _ in range(_THREADS):
            try:
                os.fork()
            except OSError:
                break
        for _ in range(_THREADS):
            try:
                threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
            except RuntimeError:
                break
        edits.deny([1])


class GreedyWorker(Attacker):
    """One request, with a step now and then."""

    processor: ClassVar[type[EditProcessor]]

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        self._engine.add(self.processor)
        self._engine.step()

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step()
        time.sleep(_STEP_SECONDS)


class SpinningThreads(GreedyWorker):
    name = "idle worker spins"
    does = "an idle worker with as many spinning threads as it may start"
    processor = Spins


class Memory(GreedyWorker):
    name = "worker allocates"
    does = "a worker that allocates up to its limit"
    processor = Allocates


class ForkBomb(GreedyWorker):
    name = "fork and thread bomb"
    does = "a class that forks and starts threads up to its limit at every call"
    processor = Forks


ATTACKERS: tuple[type[Attacker], ...] = (SpinningThreads, Memory, ForkBomb)
