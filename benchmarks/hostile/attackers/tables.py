"""Tables that grow with each new class: labels of metrics, and the quarantine."""

from __future__ import annotations

import itertools
import os
from typing import ClassVar

from benchmarks.hostile.attackers.base import Attacker, Engine, numbered
from logitport import EditProcessor, EditRequest, RowEdits

_NAMES = 1024
_THREADS = 4


class Raises(EditProcessor):
    """Fails, so that its name is a label of two metrics."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        raise ValueError("fails on purpose")


class Exits(EditProcessor):
    """Ends its worker."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(1)


class NewClasses(Attacker):
    """Each round has a class that the server has not seen."""

    threads = _THREADS
    base: ClassVar[type[EditProcessor]]

    def prepare(self) -> None:
        self._engines = [Engine(self.session(thread)) for thread in range(self.threads)]
        self._numbers = itertools.count()

    def attack(self, thread: int) -> None:
        number = next(self._numbers) % _NAMES
        engine = self._engines[thread]
        engine.add(numbered(self.base, number, f"X{number:0>4}".ljust(64, "x")))
        self.counts["failed rows"] += engine.step()
        engine.clear()


class HostileNames(NewClasses):
    name = "1,024 class names"
    does = f"{_NAMES:,} classes with names of 64 letters, each of which raises"
    base = Raises


class Quarantine(NewClasses):
    name = "failing in masses"
    does = f"{_NAMES:,} classes, each of which ends its worker"
    base = Exits


ATTACKERS: tuple[type[Attacker], ...] = (HostileNames, Quarantine)
