"""An engine's session with the service: opened when it is needed, and anew after it was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.common.circuit_breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.client import Client
    from logitport.session.session import Session

# How long a step waits for a server that went away. All of the engine's requests wait along, so it is short.
RECONNECT_SECONDS = 2.0


class SessionHolder:
    """One session at a time. Not safe to use from several threads.

    Args:
        connect: makes the client; called until it returns one, which is kept.

    Attributes:
        session: None before it is needed, and after it was lost.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._breaker = Breaker()
        self.session: Session | None = None

    def opened(self, options: Callable[[], Mapping[str, Any]]) -> Session:
        """The session; opened with these options of `Client.session`, if there is none.

        Raises:
            LogitportError: as `Client.session`; for a while after a failure, that failure, and nothing is tried.
        """
        if self.session is None:
            self.session = self._breaker.attempt(lambda: self._open(options()))
        return self.session

    def answered(self) -> None:
        """The session has done what it is for; that it could be opened does not tell so."""
        self._breaker.answered()

    def lose(self, error: Exception) -> None:
        """The session is of no use any more. Nothing happens if there is none, as where `opened` raised the error."""
        if self.session is not None:
            self._breaker.failed(error, self._client.timeout if self._client else 0.0)
            self.close()

    def close(self) -> None:
        """End the session; the client stays open."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _open(self, options: Mapping[str, Any]) -> Session:
        if self._client is None:
            self._client = self._connect()
        return self._client.session(**options)
