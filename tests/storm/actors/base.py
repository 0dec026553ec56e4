"""What all actors have: their settings, the records that they send, and the loop that runs their events."""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from logitport import LogitportError, ServerUnavailable
from tests.storm import classes

if TYPE_CHECKING:
    from random import Random

    from tests.storm.script import Event

Send = Callable[[dict[str, Any]], None]
_RETRY_SECONDS = 120.0
_SHORTEST_WAIT_SECONDS = 0.2  # shorter ones are not recorded
_COUNTS_SECONDS = 2.0


@dataclass(frozen=True)
class Setting:
    """What actors know of the servers.

    Attributes:
        targets: HOST:PORT of each server.
        tokens: the token of each principal.
        step_seconds: time of the servers for shipped code in a step.
        load_seconds: and for an admission.
        until: time on the monotonic clock at which actors end.
        programs: payloads of programs.
    """

    targets: list[str]
    tokens: Mapping[str, str]
    step_seconds: float
    load_seconds: float
    until: float
    programs: dict[tuple[str, int], str] = field(default_factory=dict)


@dataclass
class Records:
    """Sends the records of one actor: of what failed, of waits and of counts. All have the fields in `common`."""

    actor: str
    send: Send
    counts: Counter[str] = field(default_factory=Counter)
    event: Event = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    _sent: float = 0.0

    def add(self, kind: str, **fields: Any) -> None:
        """Send a record."""
        self.send(
            {"kind": kind, "actor": self.actor, "at": time.monotonic(), "event": self.event, **self.common, **fields}
        )

    def send_counts(self, *, last: bool = False) -> None:
        """Send the counts since the last time, now and then."""
        if last or time.monotonic() > self._sent + _COUNTS_SECONDS:
            self._sent = time.monotonic()
            self.add("counts", counts=dict(self.counts))
            self.counts.clear()

    @contextmanager
    def waiting(self, what: str, bound: float, **fields: Any) -> Iterator[None]:
        """Record how long the block takes. `bound`: the longest duration on an idle machine, in seconds."""
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            self.counts[f"{what} waits"] += 1
            if seconds > _SHORTEST_WAIT_SECONDS:
                self.add("wait", what=what, begun=begun, seconds=seconds, bound=bound, **fields)


class Actor:
    """One actor, which runs its events one after another.

    Attributes:
        kind: the part of its name before the number.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, setting: Setting, records: Records) -> None:
        self.name, self.setting, self.records = name, setting, records
        self.count = records.counts

    @staticmethod
    def draw(random: Random, seconds: float, **given: Any) -> list[Event]:
        """Return the events of an actor of this kind, without its name."""
        raise NotImplementedError

    def do(self, event: Event) -> None:
        """Run an event: the method with the name `do`."""
        getattr(self, event["do"])(event)

    def close(self) -> None:
        """Release what is open."""

    def run(self, events: list[Event], begun: float) -> None:
        """Run events at their times; those that are left at the end are left out."""
        try:
            for event in events:
                while (pause := min(begun + event["at"], self.setting.until) - time.monotonic()) > 0:
                    time.sleep(min(pause, 0.5))
                if time.monotonic() >= self.setting.until:
                    self.count["late events"] += 1
                    continue
                self.records.event, began = event, time.monotonic()
                try:
                    self.do(event)
                except Exception as error:  # noqa: BLE001 - any exception is a finding
                    self.unexpected(error, began)
                self.count["events"] += 1
                self.records.send_counts()
        finally:
            self.records.event = {}
            self.close()
            self.records.send_counts(last=True)

    def unexpected(self, error: Exception, began: float) -> None:
        """Record an exception that the event does not handle; what is broken may explain an error of the SDK."""
        fields = {"error": type(error).__name__, "detail": traceback.format_exc()[-3000:]}
        kind = "failure" if isinstance(error, LogitportError) else "exception"
        self.records.add(kind, begun=began, ships=True, chain=[], **fields)

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        time.sleep(max(0.0, min(seconds, self.setting.until - time.monotonic())))

    def retry(self, call: Callable[[], Any]) -> Any:
        """Repeat a call while no server is reached: sessions wait for one by themselves, other calls do not."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return call()
            except ServerUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


@contextmanager
def tolerating(counts: Counter[str], *also: Any) -> Iterator[None]:
    """Count the errors of an attacker's block instead of raising them."""
    try:
        yield
    except (LogitportError, OSError, *also) as error:
        counts[type(error).__name__] += 1


def run_in_process(
    actor: type[Actor], name: str, setting: Setting, events: list[Event], begun: float, pipe: Any
) -> None:
    """Run an actor as the main function of a process."""
    classes.use(setting.programs)
    with suppress(BrokenPipeError):  # the driver has ended
        records = Records(name, pipe.send)
        try:
            actor(name, setting, records).run(events, begun)
        except Exception as error:  # noqa: BLE001 - reported
            records.add("exception", error=type(error).__name__, detail=traceback.format_exc()[-3000:])
        pipe.close()
    os._exit(0)  # threads of attackers may be in calls that take long
