"""Connections to other servers, for a session that should move."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from logitport.errors import LogitportError
from logitport.session.connection.frame_connection import FrameConnection
from logitport.system.backoff import ADDED, Backoff
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session.transports.base import Transport

logger = logging.getLogger(__name__)

# Pause after an attempt, which doubles with each further one, up to a bound.
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


@dataclass(frozen=True)
class OtherServer:
    """Another server that accepts the session.

    Attributes:
        connect: makes a transport to it; its argument is how long to wait for it, in seconds.
        restore: registers the client's processors there; see `Registrations.restore`.
        settle: records whether the session has moved to it.
    """

    connect: Callable[[float], Transport]
    restore: Callable[[], dict[str, LogitportError]]
    settle: Callable[[bool], None]


class Candidate(NamedTuple):
    """An open connection to another server, which holds no requests yet.

    Attributes:
        connection: the connection.
        refused: the error of each registration that the server refused, by digest.
        settle: see `OtherServer`.
    """

    connection: FrameConnection
    refused: dict[str, LogitportError]
    settle: Callable[[bool], None]


class Moves:
    """Opens connections on a thread: a list, a server, or a name that does not answer must not delay a step.

    Its other methods are called by the engine's thread.

    Args:
        find: returns another server, or None. Raises LogitportError.
        opening: the opening frame of the session.
        timeout, local: see `FrameConnection`.
    """

    def __init__(
        self,
        find: Callable[[], OtherServer | None],
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        local: Literal["auto", "grpc", "local"],
    ) -> None:
        self._find = find
        self._opening = opening
        self._timeout = timeout
        self._local = local
        self._lock = threading.Lock()
        # Changes when the present attempt is not wanted any more.
        self._attempt = 0
        self._is_opening = False
        self._candidate: Candidate | None = None
        self._backoff = Backoff(_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, ADDED)

    def take(self, expected_requests: int) -> Candidate | None:
        """Return a connection if one is open; else begin to open one, unless that has failed shortly before."""
        with self._lock:
            candidate, self._candidate = self._candidate, None
            if candidate is None and not self._is_opening and not self._backoff.is_pausing:
                self._is_opening = True
                threading.Thread(
                    target=self._open, args=(self._attempt, expected_requests), name="logitport-move", daemon=True
                ).start()
        return candidate

    def settle(self, candidate: Candidate, *, moved: bool) -> None:
        """Record the end of an attempt. Closes a connection that the session has not moved to."""
        candidate.settle(moved)
        with self._lock:
            if moved:
                self._backoff.reset()
            else:
                self._backoff.next()
        if not moved:
            candidate.connection.transport.close()

    def cancel(self) -> None:
        """End the present attempt, if there is one."""
        with self._lock:
            self._attempt += 1
            candidate, self._candidate = self._candidate, None
        if candidate is not None:
            candidate.connection.transport.close()

    def _open(self, attempt: int, expected_requests: int) -> None:
        candidate = None
        try:
            candidate = self._try_open(expected_requests)
        except LogitportError as error:
            logger.info("a session stays where it is, although its server states that it should move: %s", error)
        finally:
            with self._lock:
                self._is_opening = False
                wanted = attempt == self._attempt
                if candidate is None:
                    self._backoff.next()
                elif wanted:
                    self._candidate = candidate
            if candidate is not None and not wanted:
                candidate.connection.transport.close()

    def _try_open(self, expected_requests: int) -> Candidate | None:
        other = self._find()
        if other is None:
            return None
        opening = processing_pb2.OpenSession()
        opening.CopyFrom(self._opening)  # the engine's thread may write to it
        opening.expected_requests = expected_requests
        connection = FrameConnection(other.connect, timeout=self._timeout, local=self._local)
        connection.open(opening)
        try:
            return Candidate(connection, other.restore(), other.settle)
        except BaseException:
            connection.transport.close()
            raise
