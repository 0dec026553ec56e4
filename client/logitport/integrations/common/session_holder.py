"""Holds an engine's session: opened on first use, and reopened after it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.common.circuit_breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.client import Client
    from logitport.session.session import Session


class SessionHolder:
    """Holds at most one session. Not thread-safe.

    Args:
        connect: creates the client; called until it succeeds, and the client is then reused.

    Attributes:
        session: None before first use and after the session is lost.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._breaker = Breaker()
        self.session: Session | None = None

    def ensure_open(self, options: Callable[[], Mapping[str, Any]]) -> Session:
        """Return the session, opening it with these options of `Client.session` if there is none.

        Raises:
            LogitportError: as `Client.session`. During the pause after a failure, the earlier error: nothing is tried.
        """
        if self.session is None:
            self.session = self._breaker.attempt(lambda: self._open(options()))
        return self.session

    def record_success(self) -> None:
        """Report that the session has done its work. Opening a session does not count as success."""
        self._breaker.record_success()

    def discard(self, error: Exception) -> None:
        """Close a failed session. Does nothing without one, for example if `ensure_open` raised the error."""
        if self.session is not None:
            self._breaker.record_failure(error, self._client.timeout if self._client else 0.0)
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
