"""Decides which records are findings: what the documentation promises, in view of all that was broken meanwhile."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import ProcessorFailed
from tests.storm.chains import BUILTINS

if TYPE_CHECKING:
    from collections.abc import Iterable

Record = dict[str, Any]

# Errors by which a harmful chain may fail.
_HARMFUL = frozenset({"ProcessorFailed", "StateLost", "LimitExceeded", "PayloadError", "InvalidArgument"})
_SHIPPED = frozenset({"ProcessorFailed", "StateLost", "LimitExceeded"})
_SENT = "while logits of this request were being processed"
_LATE = "has not loaded its processors yet"
_SPENT = "have used up the time of this step"
_QUARANTINED = "is quarantined for all callers"
# Calls in workers may exceed their time limits on a machine that is busier.
_MAX_FACTOR = 2.0
# Lateness of the control process that an idle machine has, in seconds.
_IDLE_LATENESS = 0.05


class Effect(NamedTuple):
    """What a hit may do to engines that are not to blame.

    Attributes:
        shipped: errors of requests whose chains run in workers.
        all: errors of all requests.
        wait: how much longer a call may take, in seconds.
        after: how long it has an effect after its end, in seconds.
    """

    shipped: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()
    wait: float = 0.0
    after: float = 0.0


_HEALTH = frozenset({"HealthCheckFailed"})
_LOST_SERVER = Effect(_SHIPPED, _HEALTH | {"Reconnected", "ServerUnavailable"}, wait=12.0, after=15.0)
_LOST_WORKER = frozenset({"ProcessorFailed", "StateLost"})
# By what is broken.
EFFECTS = {
    "worker killed": Effect(_LOST_WORKER, wait=3.0, after=1.0),
    "worker stopped": Effect(_LOST_WORKER, wait=6.0, after=3.0),
    "zygote killed": Effect(_SHIPPED, wait=6.0, after=32.0),  # it is launched again after 30 s at most
    "zygote stopped": Effect(_SHIPPED, wait=12.0, after=32.0),
    "principal killed": _LOST_SERVER,
    "principal stopped": _LOST_SERVER,
    "server killed": _LOST_SERVER,
    "server stopped": _LOST_SERVER,
    "server drained": _LOST_SERVER,
    "descriptors": Effect(
        _SHIPPED, frozenset({"LimitExceeded", "ServerUnavailable", "Reconnected"}) | _HEALTH, wait=12.0, after=5.0
    ),
    "principal's memory": _LOST_SERVER._replace(all=_LOST_SERVER.all | {"LimitExceeded"}),
    "disk": Effect(_SHIPPED | {"LogitportError"}, wait=5.0, after=5.0),
    "slow calls": Effect(_SHIPPED, wait=10.0, after=10.0),
    "clock": Effect(),
    "tokens": Effect(after=3.0),
}


@dataclass
class Hit:
    """Something that was broken.

    Attributes:
        what: a key of EFFECTS.
        server: the server that is broken; "" for all.
        begun, ended: on the monotonic clock; it has not ended at infinity.
        principal: the principal whose process is broken: others must not notice that; "" if more is broken.
    """

    what: str
    server: str
    begun: float
    ended: float = float("inf")
    principal: str = ""

    def touches(self, begun: float, ended: float, principal: str | None = None) -> bool:
        """Whether it had an effect in this time, on this principal, or on one that is not known."""
        if self.principal and principal not in (None, self.principal):
            return False
        return self.begun <= ended and begun <= self.ended + EFFECTS[self.what].after


@dataclass
class Load:
    """How late a process of this machine is that sleeps, echoes and computes: times and seconds, in order."""

    times: list[float] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)

    def add(self, samples: Iterable[tuple[float, float]]) -> None:
        """Add samples that are later than those before."""
        for time, late in samples:
            self.times.append(time)
            self.lateness.append(late)

    def factor(self, begun: float, ended: float) -> float:
        """How much longer a call of this time may take than on an idle machine."""
        first, last = bisect.bisect_left(self.times, begun - 0.2), bisect.bisect_right(self.times, ended + 0.2)
        window = self.lateness[first:last]
        return max(1.0, max(window, default=0.0) / _IDLE_LATENESS)


@dataclass
class Judge:
    """Compares records with what the documentation promises.

    Attributes:
        hits: what was broken.
        load: how busy the machine was.
        servers: number of servers.
    """

    hits: list[Hit]
    load: Load
    servers: int

    def findings(self, records: Iterable[Record]) -> list[Record]:
        """Return the records that break a promise."""
        return [record for record in records if self._breaks(record)]

    def _breaks(self, record: Record) -> bool:
        if record["kind"] == "wait":
            return self._too_long(record)
        if record["kind"] == "failure":
            return not self._may_fail(record)
        if record["kind"] == "logged error" and _QUARANTINED in record["detail"]:
            return not self._had_slow_calls(record["at"])
        return True

    def _too_long(self, record: Record) -> bool:
        ended = record["begun"] + record["seconds"]
        most = record["bound"] * self.load.factor(record["begun"], ended)
        if record["seconds"] <= most:
            return False
        touching = self._touching(record, ended)
        most += sum(EFFECTS[hit.what].wait for hit in touching)
        lost = [hit for hit in touching if EFFECTS[hit.what] is _LOST_SERVER]
        names = {hit.server for hit in lost}
        if len(names) == self.servers or record.get("only") in names:  # a call waits until one of them is back
            most += sum(min(hit.ended, ended) - hit.begun for hit in lost)
        return bool(record["seconds"] > most)

    def _may_fail(self, record: Record) -> bool:
        error = record["error"]
        if record.get("harmful"):
            return error in _HARMFUL
        hits = self._touching(record, record["at"])
        if error == "StateLost" and record.get("follows"):
            # Such a state is rebuilt. But logits that were sent are lost with their server.
            return _SENT in record["detail"] and bool(hits)
        if _LATE in record.get("detail", "") and any(name not in BUILTINS for name, _ in record["chain"]):
            return any(EFFECTS[hit.what] is _LOST_SERVER for hit in hits)
        timed_out = record.get("code") == ProcessorFailed.TIMED_OUT and record["ships"]
        if timed_out and self.load.factor(record["begun"], record["at"]) > _MAX_FACTOR:
            return True
        if record.get("code") == ProcessorFailed.QUARANTINED and record["ships"] and self._had_slow_calls(record["at"]):
            return True
        if _SPENT in record.get("detail", "") and record.get("beside_harm"):
            return True
        effects = [EFFECTS[hit.what] for hit in hits]
        return any(error in effect.all or (record["ships"] and error in effect.shipped) for effect in effects)

    def _had_slow_calls(self, until: float) -> bool:
        """Whether calls of good classes may have been slow before this time: each counts for minutes."""
        return any(hit.begun <= until for hit in self.hits) or self.load.factor(0.0, until) > _MAX_FACTOR

    def _touching(self, record: Record, ended: float) -> list[Hit]:
        """What was broken meanwhile, of the server that the actor uses if it uses only one."""
        servers = {record.get("only") or "", ""}
        return [
            hit
            for hit in self.hits
            if hit.touches(record["begun"], ended, record.get("principal"))
            and (not record.get("only") or hit.server in servers)
        ]
