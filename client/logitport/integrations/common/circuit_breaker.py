"""A circuit breaker, which decides when to call a service again after it failed, and the session behind it."""

from __future__ import annotations

from contextlib import nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from logitport.errors import LogitportError, ServerUnavailable, SessionClosed
from logitport.system.backoff import ADDED, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from logitport.client.client import Client
    from logitport.session import Session

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
        if self._failure is not None:
            self._failure = None
            self._backoff.reset()

    def _open(self, error: BaseException, blocked_seconds: float) -> None:
        self._failure = error.with_traceback(None)  # a traceback would keep frames and their tensors alive
        self._backoff.next(max(_MIN_PAUSE_SECONDS, blocked_seconds))


class SessionHolder:
    """Holds at most one session. Not thread-safe.

    Args:
        connect: creates the client; called until it succeeds, and the client is then reused.

    Attributes:
        session: None before first use and after the session is lost.
        breaker: closed by its `record_success` after a step. Opening a session does not count as success.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self.breaker = Breaker()
        self.session: Session | None = None

    def ensure_open(self, options: Callable[[], Mapping[str, Any]]) -> Session:
        """Return the session. Opens it with these options of `Client.session` if needed.

        Raises:
            LogitportError: as `Client.session`. During the pause after a failure, the earlier error: nothing is tried.
        """
        if self.session is None:
            self.session = self.breaker.attempt(lambda: self._open(options()))
        return self.session

    def together(self) -> AbstractContextManager[None]:
        """As `Session.together`, if there is a session."""
        return nullcontext() if self.session is None else self.session.together()

    def discard(self, error: Exception) -> None:
        """Close a failed session. Does nothing without one, for example if `ensure_open` raised the error."""
        if self.session is not None:
            self.breaker.record_failure(error, self._client.timeout if self._client else 0.0)
            self.close()

    def close(self) -> None:
        """Close the session. The client stays open."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _open(self, options: Mapping[str, Any]) -> Session:
        if self._client is None:
            self._client = self._connect()
        return self._client.session(**options)
