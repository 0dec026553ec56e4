"""Admissions that take long: in `validate_params`, and in `start`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.hostile.attackers.base import PRINCIPALS, Attacker
from logitport import EditProcessor, EditRequest, Request, RowEdits

if TYPE_CHECKING:
    from collections.abc import Mapping

_SLEEP_SECONDS = 4.0


class SlowToValidate(EditProcessor):
    """Sleeps less than the deadline of a load."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        time.sleep(_SLEEP_SECONDS)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class SlowToInitialize(EditProcessor):
    """Sleeps less than the deadline of a load."""

    def __init__(self) -> None:
        time.sleep(_SLEEP_SECONDS)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class SlowToStart(EditProcessor):
    """Sleeps less than the deadline of a load."""

    def start(self, request: EditRequest) -> None:
        time.sleep(_SLEEP_SECONDS)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class SlowAdmission(Attacker):
    """Each thread has a session, and a tenant, so that no admission waits for a worker."""

    threads = 16
    processor: ClassVar[type[EditProcessor]]

    def prepare(self) -> None:
        self._sessions = [self.session(thread % PRINCIPALS) for thread in range(self.threads)]

    def attack(self, thread: int) -> None:
        session = self._sessions[thread]
        session.remove(session.add(Request([1], processors=[(self.processor, {})], tenant=f"tenant {thread}")))
        self.counts["admitted"] += 1


class SlowValidation(SlowAdmission):
    name = "slow validate_params"
    does = f"{SlowAdmission.threads} sessions admit requests whose validate_params sleeps {_SLEEP_SECONDS:g} s"
    processor = SlowToValidate


class SlowInit(SlowAdmission):
    name = "slow __init__"
    does = f"{SlowAdmission.threads} sessions admit requests whose __init__ sleeps {_SLEEP_SECONDS:g} s"
    processor = SlowToInitialize


class SlowStart(SlowAdmission):
    name = "slow start"
    does = f"{SlowAdmission.threads} sessions admit requests whose start sleeps {_SLEEP_SECONDS:g} s"
    processor = SlowToStart


ATTACKERS: tuple[type[Attacker], ...] = (SlowValidation, SlowInit, SlowStart)
