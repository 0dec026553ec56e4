"""Quotas of each principal: call rate, concurrent calls, and open sessions."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import limits
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.config import ServerConfig
    from logitport_server.principals import Principal


class Quotas:
    """Counts the calls and sessions of each principal."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._rate = limits.parse(config.max_call_rate)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._calls: Counter[str] = Counter()
        self._sessions: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def check_rate(self, principal: Principal) -> None:
        """Count one more call or session. Raises LimitExceeded if the principal's rate is too high."""
        if not await self._limiter.hit(self._rate, principal.name):
            raise LimitExceeded(
                f"{principal.display_name} makes more than {self._rate} calls, the limit of a principal: do more per "
                "call, keep a session open, or raise --max-call-rate"
            )

    def begin_call(self, principal: Principal) -> Callable[[], None]:
        """Count a call as in flight. Returns a function that ends it, to be called on any thread.

        Raises:
            LimitExceeded: the principal has too many calls in flight.
        """
        limit = self._config.max_calls_per_principal
        with self._lock:
            if self._calls[principal.name] >= limit:
                raise LimitExceeded(
                    f"{principal.display_name} has {limit} calls in flight, the limit of a principal: wait for some to "
                    "end, or raise --max-calls-per-principal"
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
                    f"the server has {self._config.max_sessions} sessions open, its limit: try again later, or raise "
                    "--max-sessions"
                )
            self._sessions[principal.name] += 1
        return partial(self._end, self._sessions, principal.name)

    def _end(self, counted: Counter[str], name: str) -> None:
        with self._lock:
            counted[name] -= 1
            if not counted[name]:
                del counted[name]  # names may come from certificates: their number has no limit
