"""How many servers a fleet should have: a function of the load, of time and of the last decision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# The load of fewer servers must stay below this part of the limits, or the next decision could be the opposite.
_SLACK = 0.7
# After an addition because of slow steps, sessions need time to move. More servers before that would not be faster.
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """When a fleet grows and shrinks.

    Attributes:
        min_servers: 1 or more.
        max_servers: `min_servers` or more.
        sessions_per_server: the mean number of sessions above which servers are added.
        step_seconds: the mean time of a step above which servers are added.
        patience_seconds: how long the load must fit into fewer servers before one is removed.
    """

    min_servers: int
    max_servers: int
    sessions_per_server: int
    step_seconds: float
    patience_seconds: float


@dataclass(frozen=True)
class FleetLoad:
    """The load of all servers together.

    Attributes:
        sessions: number of open sessions.
        step_seconds: mean time in which the servers computed the last steps; 0 without steps.
    """

    sessions: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The last decision.

    Attributes:
        servers: the number of servers that the fleet should have.
        grown_at: time of the last addition because of slow steps; -inf if there was none.
        low_since: since when the load fits into fewer servers; None if it does not.
    """

    servers: int
    grown_at: float = -math.inf
    low_since: float | None = None


def decide(policy: Policy, last: Decision, load: FleetLoad, now: float) -> Decision:
    """Decide how many servers the fleet should have.

    Sessions add as many servers at once as they need. Slow steps add one, and only while there are more sessions than
    servers: a server without a session makes no step faster. Servers are removed one at a time.

    Args:
        policy: the limits.
        last: the decision before.
        load: the present load.
        now: time in seconds, of any clock that only advances.
    """
    servers = min(max(last.servers, policy.min_servers), policy.max_servers)
    last = replace(last, servers=servers)
    needed = min(math.ceil(load.sessions / policy.sessions_per_server), policy.max_servers)
    if needed > servers:
        return replace(last, servers=needed, low_since=None)
    if load.step_seconds > policy.step_seconds:
        last = replace(last, low_since=None)
        if servers < min(policy.max_servers, load.sessions) and now - last.grown_at >= _SETTLE_SECONDS:
            return replace(last, servers=servers + 1, grown_at=now)
        return last
    if servers == policy.min_servers or not _fits(policy, load, servers, servers - 1):
        return replace(last, low_since=None)
    if last.low_since is None:
        last = replace(last, low_since=now)
    if now - (last.low_since or 0.0) >= policy.patience_seconds:
        return replace(last, servers=servers - 1, low_since=None)
    return last


def _fits(policy: Policy, load: FleetLoad, servers: int, fewer: int) -> bool:
    """Whether the load of the servers would fit into fewer ones, if the time of a step grew with their load."""
    return (
        load.sessions <= _SLACK * fewer * policy.sessions_per_server
        and load.step_seconds * servers / fewer <= _SLACK * policy.step_seconds
    )
