"""Shipped processors that fail, hang, take all that the sandbox allows, or are many; their code runs in workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import ClassVar

import torch

from benchmarks.hostile.attackers import processors
from benchmarks.hostile.attackers.base import PRINCIPALS, VOCAB_SIZE, Attacker, Engine, numbered
from logitport import EditProcessor, Request

_NAMES = 1024
_TENANTS = 63  # the server has 64 workers by default
_CALLS = 256  # as many as the server has threads for calls; each principal has as many as it may
_TENANTS_OF_CALLS = 8
_SESSIONS, _CLASSES = 12, 4  # with the short-lived ones more workers than the server has by default
_SHORT_LIVED = 24


class Steps(Attacker):
    """Steps of requests with a processor that stay.

    Attributes:
        processor: of all requests.
        rows: how many requests there are.
        first_step: whether a step is made before the attack.
        token_ids: new ids of each request at each step.
        pause: seconds after each step.
    """

    processor: ClassVar[type[EditProcessor]]
    rows: ClassVar[int] = 1
    first_step: ClassVar[bool] = True
    token_ids: ClassVar[Sequence[int]] = ()
    pause: ClassVar[float] = 0.0

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        for _ in range(self.rows):
            self._engine.add(self.processor)
        if self.first_step:
            self._engine.step()

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step(self.token_ids)
        time.sleep(self.pause)


class SleepsAndRaises(Steps):
    name = "edit sleeps and raises"
    does = f"16 rows of one processor whose edit sleeps {processors.FAILING_SECONDS} s and raises"
    processor, rows, first_step = processors.SleepsThenRaises, 16, False


class HangsEverySecondCall(Steps):
    name = "hangs every second call"
    does = "a processor that hangs at every second call"
    processor, token_ids = processors.HangsAtTimes, (7,)


class SpinningThreads(Steps):
    name = "idle worker spins"
    does = "an idle worker with as many spinning threads as it may start"
    processor, pause = processors.Spins, 0.5


class Memory(Steps):
    name = "worker allocates"
    does = "a worker that allocates up to its limit"
    processor, pause = processors.Allocates, 0.5


class ForkBomb(Steps):
    name = "fork and thread bomb"
    does = "a class that forks and starts threads up to its limit at every call"
    processor, pause = processors.Forks, 0.5


class NewClasses(Attacker):
    """New classes in each round, because a class that fails is soon in quarantine.

    Attributes:
        base: their base class.
        rows: how many classes a round has, each in a request of its own.
        steps: how many steps a round has.
    """

    base: ClassVar[type]
    rows: ClassVar[int] = 1
    steps: ClassVar[int] = 1

    def prepare(self) -> None:
        self._engines = [Engine(self.session(thread)) for thread in range(self.threads)]
        self._numbers = itertools.count()

    def attack(self, thread: int) -> None:
        engine = self._engines[thread]
        for _ in range(self.rows):
            engine.add(self.make_class(next(self._numbers)))
        for _ in range(self.steps):
            self.counts["failed rows"] += engine.step()
        engine.clear()

    def make_class(self, number: int) -> type:
        """The class with this number."""
        return numbered(self.base, number)


class SixteenHang(NewClasses):
    name = "16 classes hang"
    does = "16 new classes in one session, all of which hang"
    base, rows = processors.Hangs, 16


class LargeMessages(NewClasses):
    name = "4 MB worker messages"
    does = "a worker whose replies are messages of 4 MB with empty columns"
    base, steps = processors.LyingReplies, 3


class EndlessEdits(NewClasses):
    name = "edits without end"
    does = f"a worker that answers with {processors.EDITS} edits of every id"
    base, steps = processors.DeniesAll, 3


class HostileNames(NewClasses):
    """All classes have different names: tables grow with each of them."""

    name = "1,024 class names"
    does = f"{_NAMES:,} classes with names of 64 letters, each of which raises"
    base, threads = processors.Raises, 4

    def make_class(self, number: int) -> type:
        number %= _NAMES
        return numbered(self.base, number, f"X{number:0>4}".ljust(64, "x"))


class Quarantine(HostileNames):
    name = "failing in masses"
    does = f"{_NAMES:,} classes, each of which ends its worker"
    base = processors.Exits


class SlowValidation(Attacker):
    """Each thread has a session, and a tenant, so that no admission waits for a worker."""

    name = "slow validate_params"
    does = f"16 sessions admit requests whose validate_params sleeps {processors.LOAD_SECONDS:g} s"
    threads = 16
    processor: ClassVar[type[EditProcessor]] = processors.SlowToValidate

    def prepare(self) -> None:
        self._sessions = [self.session(thread % PRINCIPALS) for thread in range(self.threads)]

    def attack(self, thread: int) -> None:
        session = self._sessions[thread]
        session.remove(session.add(Request([1], processors=[(self.processor, {})], tenant=f"tenant {thread}")))
        self.counts["admitted"] += 1


class SlowInit(SlowValidation):
    name = "slow __init__"
    does = f"16 sessions admit requests whose __init__ sleeps {processors.LOAD_SECONDS:g} s"
    processor = processors.SlowToInitialize


class SlowStart(SlowValidation):
    name = "slow start"
    does = f"16 sessions admit requests whose start sleeps {processors.LOAD_SECONDS:g} s"
    processor = processors.SlowToStart


class AllWorkers(Attacker):
    name = "63 tenants"
    does = f"{_TENANTS} tenants with a class each, in one session, at every step"

    def prepare(self) -> None:
        self._engine = Engine(self.session())
        for number in range(_TENANTS):
            try:
                self._engine.add(numbered(processors.Denies, number), tenant=f"tenant {number}")
            except Exception as error:  # noqa: BLE001 - counted; the others still take workers
                self.counts[type(error).__name__] += 1

    def attack(self, thread: int) -> None:
        self.counts["failed rows"] += self._engine.step()


class AllThreads(Attacker):
    name = "256 slow calls"
    does = f"{_CALLS} stateless calls in flight whose processors sleep {processors.CALL_SECONDS} s"
    threads = _CALLS

    def attack(self, thread: int) -> None:
        request = Request(
            [1], processors=[(processors.Sleeps, {})], tenant=f"tenant {thread // PRINCIPALS % _TENANTS_OF_CALLS}"
        )
        result = self.client(thread % PRINCIPALS).apply(torch.zeros(1, VOCAB_SIZE), [request], check=False)
        self.counts["failed rows"] += len(result.failures)


class LostSlots(Attacker):
    """Workers that lose their slots, so that steps wait for others and for forks.

    The last thread is another principal, below its share: it takes slots from the others, and gives them back.
    """

    name = "workers come and go"
    does = f"{_SESSIONS} sessions of {_CLASSES} workers each, some of which {_SHORT_LIVED} short requests need, too"
    threads = _SESSIONS + 1

    def prepare(self) -> None:
        self._numbers = itertools.count()
        self._engines = [Engine(self.session(thread // _SESSIONS)) for thread in range(self.threads)]
        self._admitted: set[int] = set()

    def attack(self, thread: int) -> None:
        engine, short_lived = self._engines[thread], thread == _SESSIONS
        if thread not in self._admitted:
            self._admitted |= set() if short_lived else {thread}
            for _ in range(_SHORT_LIVED if short_lived else _CLASSES):
                engine.add(numbered(processors.Denies, next(self._numbers)))
        self.counts["failed rows"] += engine.step()
        if short_lived:
            engine.clear()
        time.sleep(0.05)


ATTACKERS: tuple[type[Attacker], ...] = (
    SleepsAndRaises, SixteenHang, HangsEverySecondCall, SlowValidation, SlowInit, SlowStart, SpinningThreads, Memory,
    ForkBomb, LargeMessages, EndlessEdits, AllWorkers, AllThreads, HostileNames, Quarantine, LostSlots,
)  # fmt: skip
