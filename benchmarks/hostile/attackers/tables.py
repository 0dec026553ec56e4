"""Tables that grow with each new class: labels of metrics, and the quarantine."""

from __future__ import annotations

import os

from benchmarks.hostile.attackers.base import Attacker, NewClasses, numbered
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


class ManyNames(NewClasses):
    """All classes have different names."""

    threads = _THREADS

    def make_class(self, number: int) -> type:
        number %= _NAMES
        return numbered(self.base, number, f"X{number:0>4}".ljust(64, "x"))


class HostileNames(ManyNames):
    name = "1,024 class names"
    does = f"{_NAMES:,} classes with names of 64 letters, each of which raises"
    base = Raises


class Quarantine(ManyNames):
    name = "failing in masses"
    does = f"{_NAMES:,} classes, each of which ends its worker"
    base = Exits


ATTACKERS: tuple[type[Attacker], ...] = (HostileNames, Quarantine)
