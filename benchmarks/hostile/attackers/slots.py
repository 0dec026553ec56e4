"""Workers that lose their slots, so that steps wait for others and for forks."""

from __future__ import annotations

import itertools
import time

from benchmarks.hostile.attackers.base import Attacker, Engine, numbered
from logitport import EditProcessor, EditRequest, RowEdits

_SESSIONS, _CLASSES = 12, 4  # with the short-lived ones more workers than the server has by default
_SHORT_LIVED = 24
_PAUSE_SECONDS = 0.05


class Denies(EditProcessor):
    """Needs a worker, and little of its time."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class LostSlots(Attacker):
    """The last thread is another principal, below its share: it takes slots from the others, and gives them back."""

    name = "workers come and go"
    does = f"{_SESSIONS} sessions of {_CLASSES} workers each, some of which {_SHORT_LIVED} short requests need, too"
    threads = _SESSIONS + 1

    def prepare(self) -> None:
        self._numbers = itertools.count()
        self._engines = [Engine(self.session(thread // _SESSIONS)) for thread in range(self.threads)]
        self._admitted: set[int] = set()

    def attack(self, thread: int) -> None:
        engine = self._engines[thread]
        if thread == _SESSIONS:
            self._add(engine, _SHORT_LIVED)
            engine.step()
            engine.clear()
        else:
            if thread not in self._admitted:
                self._admitted.add(thread)
                self._add(engine, _CLASSES)
            self.counts["failed rows"] += engine.step()
        time.sleep(_PAUSE_SECONDS)

    def _add(self, engine: Engine, classes: int) -> None:
        for _ in range(classes):
            engine.add(numbered(Denies, next(self._numbers)))


ATTACKERS: tuple[type[Attacker], ...] = (LostSlots,)
