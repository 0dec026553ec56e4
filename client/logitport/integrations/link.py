"""An engine's session with the service: opened when it is needed, and anew after it was lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from logitport.errors import DeadlineExceeded, InternalError, ServerUnavailable, SessionClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.client import Client
    from logitport.session import Session

# What is wrong with the session, not with the request that it was met at.
SESSION_ERRORS = (ServerUnavailable, DeadlineExceeded, InternalError, SessionClosed)

# How long a step waits for a server that went away. All of the engine's requests wait along, so it is short.
RECONNECT_SECONDS = 2.0

# After an attempt that failed nobody waits, and who asks gets the same error, until the next attempt. Where one takes
# long, as to a host that does not answer, the next is so far off that the engine waits a tenth of its time.
_RETRY_SECONDS = 1.0
_RETRY_FACTOR = 9.0


class Link:
    """One session at a time. Not safe to use from several threads.

    Args:
        connect: makes the client; called until it returns one, which is kept.

    Attributes:
        session: None before it is needed, and after it was lost.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self.session: Session | None = None
        self._lost: Exception | None = None
        self._retry_at = 0.0

    def opened(self, options: Callable[[], Mapping[str, Any]]) -> Session:
        """The session; opened with these options of `Client.session`, if there is none.

        Raises:
            LogitportError: as `Client.session`; for a while after a failure, that failure, and nothing is tried.
        """
        if self.session is not None:
            return self.session
        began = time.monotonic()
        if self._lost is not None and began < self._retry_at:
            raise self._lost.with_traceback(None)
        try:
            if self._client is None:
                self._client = self._connect()
            self.session = self._client.session(**options())
        except Exception as error:
            self._pause(error, time.monotonic() - began)
            raise
        self._lost = None
        return self.session

    def lose(self, error: Exception) -> None:
        """The session is of no use any more. Nothing happens where `opened` raised the error."""
        if error is not self._lost:
            self._pause(error)
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def close(self) -> None:
        """End the session; the client stays open."""
        if self.session is not None:
            self.session.close()

    def _pause(self, error: Exception, vain_seconds: float = 0.0) -> None:
        self._lost = error.with_traceback(None)  # or it keeps frames and their tensors
        self._retry_at = time.monotonic() + max(_RETRY_SECONDS, _RETRY_FACTOR * vain_seconds)
