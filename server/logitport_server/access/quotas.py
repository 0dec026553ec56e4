"""Quotas of each principal: call rate, concurrent calls, and open sessions."""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from aiolimiter import AsyncLimiter

from logitport.errors import LimitExceeded
from logitport.system.bounded import PartyCounter

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.config import ServerConfig
    from logitport_session.trust.principals import Principal

# In flight, without sessions. A call may hold a message of the maximum size, and its work may outlive it.
MAX_CALLS_PER_PRINCIPAL = 64
# Names may come from certificates: their number has no limit. The counts of the least active principals are dropped.
_MAX_LIMITERS = 4096


class Quotas:
    """Counts the calls and sessions of each principal."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        # Leaky buckets on the event loop's clock, which is monotonic. Windows of the wall clock refuse callers after it
        # is set back.
        self._limiter = lru_cache(_MAX_LIMITERS)(lambda _: AsyncLimiter(*config.call_rate))
        self._calls: PartyCounter[str] = PartyCounter()
        self._sessions: PartyCounter[str] = PartyCounter()
        self._lock = threading.Lock()

    async def check_rate(self, principal: Principal) -> None:
        """Count one more call or session. Raises LimitExceeded if the principal's rate is too high."""
        limiter = self._limiter(principal.name)
        if not limiter.has_capacity():
            raise LimitExceeded(
                f"{principal.display_name} makes more calls than {self._config.max_call_rate}, the limit of a "
                "principal: do more per call, keep a session open, or raise --max-call-rate"
            )
        await limiter.acquire()  # does not wait, because there is capacity

    def begin_call(self, principal: Principal) -> Callable[[], None]:
        """Count a call as in flight. Returns a function that ends it, to be called on any thread.

        Raises:
            LimitExceeded: the principal has too many calls in flight.
        """
        limit = MAX_CALLS_PER_PRINCIPAL
        with self._lock:
            if self._calls[principal.name] >= limit:
                raise LimitExceeded(
                    f"{principal.display_name} has {limit} calls in flight, the limit of a principal: wait for some to "
                    "end"
                )
            self._calls[principal.name] += 1
        return partial(self._end, self._calls, principal.name)

    def begin_session(self, principal: Principal) -> Callable[[], None]:
        """Count a session as open. Returns a function that ends it, to be called on any thread.

        Raises:
            LimitExceeded: the principal or the server has too many sessions.
        """
        limit = self._config.max_sessions_per_principal
        with self._lock:
            if self._sessions[principal.name] >= limit:
                raise LimitExceeded(
                    f"{principal.display_name} has {limit} sessions open, the limit of a principal: close some, or "
                    "raise --max-sessions-per-principal"
                )
            if self._sessions.total() >= self._config.max_sessions:
                raise LimitExceeded(
                    f"the server has {self._config.max_sessions} sessions open, four times "
                    "--max-sessions-per-principal: try again later, or raise that option"
                )
            self._sessions[principal.name] += 1
        return partial(self._end, self._sessions, principal.name)

    def accepts_session(self, principal: Principal) -> bool:
        """Whether `begin_session` would count another session of this principal."""
        with self._lock:
            return (
                self._sessions[principal.name] < self._config.max_sessions_per_principal
                and self._sessions.total() < self._config.max_sessions
            )

    def _end(self, counted: PartyCounter[str], name: str) -> None:
        with self._lock:
            counted.remove(name)
