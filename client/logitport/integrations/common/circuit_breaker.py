"""Whether a service that failed is worth an engine's time again: a circuit breaker."""

from __future__ import annotations

import random
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from logitport.errors import DeadlineExceeded, InternalError, ServerUnavailable, SessionClosed

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# What is wrong with the service or a session with it, not with the request that it was met at.
SESSION_ERRORS = (ServerUnavailable, DeadlineExceeded, InternalError, SessionClosed)

# A pause is as long as what failed had taken, or this; twice as long after each further failure, so many times.
_SHORTEST_SECONDS = 1.0
_DOUBLINGS = 4
# And up to so much of it longer: engines that lost one server must not all come back at once.
_JITTER = 0.5


class Breaker:
    """Closed while the service answers; open, so that nobody asks, for a while after it failed.

    When that while is over the next one who asks finds out: an answer closes it, another failure opens it for twice as
    long. So an engine whose service hangs, also in steps alone, soon waits a seventeenth of its time for it, while one
    whose service is started anew finds it within seconds. Not safe to use from several threads.
    """

    def __init__(self) -> None:
        self._failure: Exception | None = None
        self._failures = 0
        self._retry_at = 0.0

    def attempt(self, call: Callable[[], _T]) -> _T:
        """What `call` returns, such as a session; that it could be had is no answer yet.

        Raises:
            Exception: what `call` raises, of which SESSION_ERRORS open the breaker.
            LogitportError: while it is open, what has opened it; nothing is called.
        """
        began = monotonic()
        if self._failure is not None and began < self._retry_at:
            raise self._failure.with_traceback(None)
        try:
            return call()
        except SESSION_ERRORS as error:
            self._open(error, monotonic() - began)
            raise

    def failed(self, error: Exception, timeout: float) -> None:
        """What `attempt` returned was of no use. Nothing happens where `attempt` raised the error.

        Args:
            error: what it failed of.
            timeout: how long an engine stood still if that is DeadlineExceeded; seconds.
        """
        if error is not self._failure:
            self._open(error, timeout if isinstance(error, DeadlineExceeded) else 0.0)

    def answered(self) -> None:
        """The service works: failures up to now do not count any more."""
        self._failure = None
        self._failures = 0

    def _open(self, error: Exception, vain_seconds: float) -> None:
        self._failure = error.with_traceback(None)  # or it keeps frames and their tensors
        pause = max(_SHORTEST_SECONDS, vain_seconds) * 2 ** min(self._failures, _DOUBLINGS)
        self._retry_at = monotonic() + pause * random.uniform(1.0, 1.0 + _JITTER)  # noqa: S311 - no secret
        self._failures += 1
