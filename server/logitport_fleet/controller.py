"""Decides which servers a fleet has, and publishes the list of those that are ready. Does not use Ray."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logitport_fleet.directory import document
from logitport_fleet.load import MeanStepTime
from logitport_fleet.scaling import Decision, FleetLoad, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport_fleet.options import FleetOptions
    from logitport_server.processes.server_report import ServerReport


class FleetServers(Protocol):
    """The servers of a fleet, by index."""

    def reports(self) -> Mapping[int, ServerReport]:
        """Return the state of each server that was created, and not removed."""

    def create(self, index: int) -> None:
        """Create a server."""

    def drain(self, index: int) -> None:
        """Let a server move its sessions, and end. May be called more than once."""

    def remove(self, index: int) -> None:
        """Remove a server, and end it if it still runs."""


@dataclass(frozen=True)
class FleetStatus:
    """State of a fleet.

    Attributes:
        url: of the list of addresses.
        desired: number of servers that the fleet should have.
        load: of all servers together.
        reports: of the servers, by index.
        error: why the fleet does not work, or "".
    """

    url: str
    desired: int
    load: FleetLoad
    reports: Mapping[int, ServerReport]
    error: str = ""


class Controller:
    """Creates, drains and removes servers. Not thread-safe.

    It keeps no state of its own: after a restart, it continues with the servers that exist.

    Args:
        options: of the fleet.
        servers: where they run.
        publish: takes the list of addresses.
        end_seconds: how long a server may take to end once it drains; after that it is removed.
        continues: whether to keep the number of existing servers, instead of `options.servers`.
        clock: returns seconds.
    """

    def __init__(
        self,
        options: FleetOptions,
        servers: FleetServers,
        publish: Callable[[bytes], object],
        end_seconds: float,
        *,
        continues: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: Mapping[int, ServerReport] = {}
        self.load = FleetLoad()
        self._options = options
        self._decision = Decision(options.servers)
        self._servers = servers
        self._publish = publish
        self._end_seconds = end_seconds
        self._continues = continues
        self._clock = clock
        self._step_times = MeanStepTime()
        self._draining_since: dict[int, float] = {}
        self._is_stopping = False

    @property
    def desired(self) -> int:
        """Number of servers that the fleet should have."""
        return 0 if self._is_stopping else self._decision.servers

    def stop(self) -> None:
        """Drain all servers from the next tick on."""
        self._is_stopping = True

    def tick(self) -> None:
        """Look at the servers once, and act."""
        now = self._clock()
        self.reports = self._servers.reports()
        for index, report in self.reports.items():
            if report.state in ("draining", "ended"):
                self._draining_since.setdefault(index, now)
        staying = [index for index in sorted(self.reports) if index not in self._draining_since]
        if self._continues:
            self._decision = Decision(len(staying) or self._decision.servers)
            self._continues = False
        loads = {index: self.reports[index].load for index in staying}
        self._step_times.add(loads, now)
        self.load = FleetLoad(sum(load.sessions for load in loads.values()), self._step_times.mean_seconds)
        self._decision = decide(self._options, self._decision, self.load, now)
        for index in staying[self.desired :]:
            self._draining_since[index] = now
        staying = staying[: self.desired]
        self._publish(document(self.reports[index] for index in staying))
        self._remove_drained(now)
        # A server that drains keeps its index, and so its port, until it has ended.
        free = [index for index in range(self._options.max_servers) if index not in self.reports]
        for index in free[: self.desired - len(staying)]:
            self._servers.create(index)

    def _remove_drained(self, now: float) -> None:
        for index, since in tuple(self._draining_since.items()):
            report = self.reports.get(index)
            if report is not None and report.state not in ("ended", "failed") and now - since <= self._end_seconds:
                self._servers.drain(index)
                continue
            del self._draining_since[index]
            if report is not None:
                self._servers.remove(index)
