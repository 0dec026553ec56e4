"""Processors that hang, or sleep and raise, in a step."""

from __future__ import annotations

import time

from benchmarks.hostile.attackers.base import Attacker, Engine, NewClasses
from logitport import EditProcessor, EditRequest, RowEdits

_ROWS = 16
_SLEEP_SECONDS = 0.8
_HANG_SECONDS = 3600.0


class Raises(EditProcessor):
    """Takes less than the deadline of a call, then fails, for each row."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(_SLEEP_SECONDS)
        raise ValueError("fails on purpose")


class Hangs(EditProcessor):
    """Does not return."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(_HANG_SECONDS)


class HangsAtTimes(EditProcessor):
    """Does not return at every second length of the history, so that its failures are never consecutive."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if len(request.history) % 2:
            time.sleep(_HANG_SECONDS)
        edits.deny([1])


class SleepsAndRaises(Attacker):
    """All rows have the same processor."""

    name = "edit sleeps and raises"
    does = f"{_ROWS} rows of one processor whose edit sleeps {_SLEEP_SECONDS} s and raises"

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        for _ in range(_ROWS):
            self._engine.add(Raises)

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step()


class SixteenHang(NewClasses):
    name = "16 classes hang"
    does = f"{_ROWS} new classes in one session, all of which hang"
    base = Hangs
    rows = _ROWS


class HangsEverySecondCall(Attacker):
    """One class in all rounds."""

    name = "hangs every second call"
    does = "a processor that hangs at every second call"

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        self._engine.add(HangsAtTimes)
        self._engine.step()

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step([7])


ATTACKERS: tuple[type[Attacker], ...] = (SleepsAndRaises, SixteenHang, HangsEverySecondCall)
