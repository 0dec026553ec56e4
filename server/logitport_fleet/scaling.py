"""How many servers a fleet should have: a function of the load, of time and of the last decision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_fleet.options import FleetOptions

# The load of fewer servers must stay below this part of the limits, or the next decision could be the opposite.
_SLACK = 0.7
# After an addition because of slow steps, sessions need time to move. More servers before that would not be faster.
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class FleetLoad:
    """The load of all servers together.

    Attributes:
        sessions: number of open sessions.
        step_seconds: mean time of the servers' last steps; 0 without steps.
    """

    sessions: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The last decision.

    Attributes:
        servers: the number of servers that the fleet should have.
        grown_at: time of the last addition because of slow steps, or -inf.
        low_since: since when the load fits into fewer servers; None if it does not.
    """

    servers: int
    grown_at: float = -math.inf
    low_since: float | None = None


def decide(options: FleetOptions, last: Decision, load: FleetLoad, now: float) -> Decision:
    """Decide how many servers the fleet should have.

    Sessions add as many servers at once as they need. Slow steps add one, and only while there are more sessions than
    servers: a server without a session makes no step faster. Servers are removed one at a time.

    Args:
        options: the limits.
        last: the decision before.
        load: the present load.
        now: time in seconds, of any clock that only advances.
    """
    servers = min(max(last.servers, options.min_servers), options.max_servers)
    last = replace(last, servers=servers)
    needed = min(math.ceil(load.sessions / options.sessions_per_server), options.max_servers)
    if needed > servers:
        return replace(last, servers=needed, low_since=None)
    if load.step_seconds > options.step_milliseconds / 1000:
        last = replace(last, low_since=None)
        if servers < min(options.max_servers, load.sessions) and now - last.grown_at >= _SETTLE_SECONDS:
            return replace(last, servers=servers + 1, grown_at=now)
        return last
    if servers == options.min_servers or not _fits(options, load, servers, servers - 1):
        return replace(last, low_since=None)
    if last.low_since is None:
        last = replace(last, low_since=now)
    if now - (last.low_since or 0.0) >= options.scale_down_seconds:
        return replace(last, servers=servers - 1, low_since=None)
    return last


def _fits(options: FleetOptions, load: FleetLoad, servers: int, fewer: int) -> bool:
    """Whether the load of the servers would fit into fewer ones, if the time of a step grew with their load."""
    return (
        load.sessions <= _SLACK * fewer * options.sessions_per_server
        and load.step_seconds * servers / fewer <= _SLACK * options.step_milliseconds / 1000
    )
