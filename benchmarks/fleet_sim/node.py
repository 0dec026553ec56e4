"""A simulated server of one core."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

from benchmarks.fleet_sim.choice import MAX_SESSIONS
from logitport.servers import _LOAD_SECONDS
from logitport.session.stopped_servers import _CHECKS, _INTERVAL_SECONDS, _QUIET_SECONDS

if TYPE_CHECKING:
    import simpy

    from benchmarks.fleet_sim.costs import Costs

# Seconds after which an engine leaves a server that has stopped, at most: `logitport.session.stopped_servers`.
HUNG_SECONDS = _QUIET_SECONDS + _CHECKS * (_LOAD_SECONDS + _INTERVAL_SECONDS)


class Node:
    """One server on one core.

    Steps, openings and GetLoad are served in the order of their arrival. Replays share the processor equally, as the
    server's turns do. While there are both, each kind gets its share of
    the core as it was measured; see `Costs`.

    Attributes:
        sessions: number of open sessions.
        requests: number of their requests.
        busy: seconds of computing.
        replays: number of replays that have begun.
    """

    def __init__(self, env: simpy.Environment, costs: Costs) -> None:
        self._env = env
        self._costs = costs
        self.sessions = 0
        self.requests = 0
        self.busy = 0.0
        self.replays = 0
        self.is_dead = False
        self.is_hung = False
        self._steps: deque[tuple[float, float, simpy.Event]] = deque()  # (work, arrival, event)
        self._left = 0.0  # of the first step
        self._replays: list[tuple[float, int, simpy.Event]] = []  # a heap of (virtual time of the end, number, event)
        self._virtual = 0.0  # processor seconds that each replay has got
        self._number = 0
        self._updated = 0.0
        self._plan_number = 0

    @property
    def is_running(self) -> bool:
        """Whether it replies."""
        return not (self.is_dead or self.is_hung)

    @property
    def accepts(self) -> bool:
        """Whether another session of the principal of all engines would be accepted."""
        return self.sessions < MAX_SESSIONS

    def count(self, sessions: int, requests: int) -> None:
        """Add to the numbers of sessions and requests. A server that is lost has none."""
        if self.is_running:
            self.sessions += sessions
            self.requests += requests

    def serve(self, work: float) -> simpy.Event:
        """Do work in the order of arrival. The event's value is False if the server is lost before it is done."""
        event = self._env.event()
        if not self._refuse(event):
            if self._steps:
                self._steps.append((work, self._env.now, event))
            else:
                self._advance()
                self._steps.append((work, self._env.now, event))
                self._left = work
                self._plan()
        return event

    def replay(self, work: float) -> simpy.Event:
        """Do work in turns with other replays. The event's value is as that of `serve`."""
        event = self._env.event()
        if not self._refuse(event):
            self._advance()
            self._number += 1
            self.replays += 1
            heapq.heappush(self._replays, (self._virtual + work, self._number, event))
            self._plan()
        return event

    def kill(self) -> None:
        """End the process: engines with a frame in flight notice it at once."""
        self._stop(0.0)
        self.is_dead = True

    def hang(self) -> None:
        """Stop the process without closing its connections: engines notice it by a time limit."""
        self._stop(HUNG_SECONDS)
        self.is_hung = True

    def revive(self) -> None:
        """Start a new process at the same address."""
        self.is_dead = self.is_hung = False

    def _stop(self, notice_seconds: float) -> None:
        self._advance()
        lost = [(arrival, event) for _, arrival, event in self._steps]
        lost += [(self._env.now, event) for _, _, event in self._replays]
        for arrival, event in lost:
            self._lose(event, max(0.0, arrival + notice_seconds - self._env.now))
        self._steps.clear()
        self._replays.clear()
        self.sessions = self.requests = 0
        self._plan_number += 1

    def _refuse(self, event: simpy.Event) -> bool:
        if not self.is_running:
            self._lose(event, HUNG_SECONDS if self.is_hung else 0.0)
        return not self.is_running

    def _lose(self, event: simpy.Event, seconds: float) -> None:
        self._env.timeout(seconds).callbacks.append(lambda _: event.succeed(False))  # type: ignore[union-attr]

    def _rates(self) -> tuple[float, float]:
        if not (self._steps and self._replays):
            return float(bool(self._steps)), float(bool(self._replays))
        return self._costs.steps_share, self._costs.replays_share

    def _advance(self) -> None:
        """Account for the time since the last change."""
        elapsed, self._updated = self._env.now - self._updated, self._env.now
        of_steps, of_replays = self._rates()
        self._left -= elapsed * of_steps
        if self._replays:
            self._virtual += elapsed * of_replays / len(self._replays)
        self.busy += elapsed * bool(of_steps or of_replays)

    def _plan(self) -> None:
        """Schedule the next end of a step or a replay."""
        self._plan_number += 1
        of_steps, of_replays = self._rates()
        next_step = max(0.0, self._left) / of_steps if of_steps else math.inf
        next_replay = math.inf
        if of_replays:
            next_replay = max(0.0, self._replays[0][0] - self._virtual) * len(self._replays) / of_replays
        if (seconds := min(next_step, next_replay)) < math.inf:
            number, is_step = self._plan_number, next_step <= next_replay
            self._env.timeout(seconds).callbacks.append(  # type: ignore[union-attr]
                lambda _: self._finish(number, is_step=is_step)
            )

    def _finish(self, number: int, *, is_step: bool) -> None:
        if number != self._plan_number:
            return
        self._advance()
        if is_step:
            self._steps.popleft()[2].succeed(True)
            self._left = self._steps[0][0] if self._steps else 0.0
        else:
            heapq.heappop(self._replays)[2].succeed(True)
        self._plan()
