"""A circuit breaker: decides when to call a service again after it failed."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from logitport.core.backoff import ADDED, Backoff
from logitport.errors import LogitportError, ServerUnavailable, SessionClosed

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def is_session_error(error: BaseException) -> bool:
    """Return whether this is an error of the service or of the session, not of the request that met it."""
    return isinstance(error, ServerUnavailable | SessionClosed) or (
        isinstance(error, LogitportError) and error.code == LogitportError.INTERNAL
    )


# A pause lasts as long as the failed call, and at least this long. Each further failure doubles it, up to a bound.
_MIN_PAUSE_SECONDS = 1.0
_MAX_FACTOR = 16.0
_JITTER = ADDED


class Breaker:
    """A circuit breaker: closed while the service answers, open for a pause after a failure.

    An open breaker raises the last failure and calls nothing. The first attempt after the pause tests the service: an
    answer closes the breaker, another failure doubles the pause. An engine soon spends at most a seventeenth of its
    time waiting for a service that hangs, even if only steps hang. A service that fails quickly, as during a
    restart, is found again within seconds. Not thread-safe.
    """

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._backoff = Backoff(1.0, _MAX_FACTOR, _JITTER, clock=monotonic)

    def attempt(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call`, such as a session. Success does not close the breaker: use `record_success`.

        Raises:
            Exception: whatever `call` raises; an error of the session opens the breaker.
            LogitportError: while the breaker is open, the error that opened it; nothing is called.
        """
        began = monotonic()
        if self._failure is not None and self._backoff.is_pausing:
            raise self._failure.with_traceback(None)
        try:
            return call()
        except LogitportError as error:
            if is_session_error(error):
                self._open(error, monotonic() - began)
            raise

    def record_failure(self, error: BaseException, timeout: float) -> None:
        """Open the breaker because the result of `attempt` failed later. Ignores an error that `attempt` itself raised.

        Args:
            error: the failure.
            timeout: how long the engine was blocked if the error is a timeout; seconds.
        """
        if error is not self._failure:
            self._open(error, timeout if isinstance(error, ServerUnavailable) and error.timed_out else 0.0)

    def record_success(self) -> None:
        """Close the breaker and forget earlier failures."""
        self._failure = None
        self._backoff.reset()

    def _open(self, error: BaseException, blocked_seconds: float) -> None:
        self._failure = error.with_traceback(None)  # a traceback would keep frames and their tensors alive
        self._backoff.next(max(_MIN_PAUSE_SECONDS, blocked_seconds))
