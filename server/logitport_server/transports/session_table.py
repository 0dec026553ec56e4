"""The open sessions, and which of them should move to another server: all while the server drains, and old ones."""

from __future__ import annotations

import math
import threading
import time
from heapq import nsmallest
from itertools import count
from random import uniform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import admin_pb2

    Describe = Callable[[], admin_pb2.SessionInfo]

# Sessions that were opened at the same time must not all move at the same time.
_YOUNGEST, _OLDEST = 0.8, 1.2


class SessionTable:
    """The open sessions of a server, and when each should move. Thread-safe.

    Args:
        max_session_seconds: about how long a session may stay; None for no limit.

    Attributes:
        is_draining: whether all sessions should move, and none is to be opened.
    """

    def __init__(self, max_session_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_draining = False
        self._max_session_seconds = max_session_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count(1)
        # By number. Numbers of streams may come in another order than they were issued in.
        self._sessions: dict[int, SessionEntry] = {}

    def open(self, *, can_move: bool, number: int | None = None) -> SessionEntry:
        """Record a session that was opened.

        Args:
            can_move: whether its engine has the address of another server.
            number: distinguishes it from all other sessions of the server; by default the next one of this object.
        """
        due = math.inf
        if self._max_session_seconds is not None and can_move:
            due = self._clock() + self._max_session_seconds * uniform(_YOUNGEST, _OLDEST)  # noqa: S311 - no secret
        with self._lock:
            number = next(self._numbers) if number is None else number
            entry = self._sessions[number] = SessionEntry(self, number, due, self._clock, can_move=can_move)
        return entry

    def close(self, entry: SessionEntry) -> None:
        """Record that a session has ended."""
        with self._lock:
            self._sessions.pop(entry.number, None)

    def drain(self) -> None:
        """State to all sessions that they should move."""
        self.is_draining = True

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    @property
    def movable_sessions(self) -> int:
        """Number of open sessions that can move."""
        with self._lock:
            return sum(session.can_move for session in self._sessions.values())

    def opened_after(self, number: int, limit: int) -> list[SessionEntry]:
        """Return at most `limit` open sessions with higher numbers than this one, by number."""
        with self._lock:
            numbers = nsmallest(limit, (found for found in self._sessions if found > number))
            return [self._sessions[found] for found in numbers]


class SessionEntry:
    """One open session.

    Attributes:
        number: distinguishes the sessions of this server; later ones have higher numbers.
        can_move: whether its engine has the address of another server.
        describe: describes the session to operators, on any thread; None if it cannot be described.
    """

    def __init__(
        self,
        session_table: SessionTable,
        number: int,
        due: float,
        clock: Callable[[], float],
        *,
        can_move: bool,
    ) -> None:
        self._session_table = session_table
        self._due = due
        self._clock = clock
        self.number = number
        self.describe: Describe | None = None
        self.can_move = can_move

    @property
    def should_move(self) -> bool:
        """Whether the session should move now."""
        return self.can_move and (self._session_table.is_draining or self._clock() >= self._due)

    def close(self) -> None:
        """End the session. May be called twice."""
        self._session_table.close(self)
        # It refers to the session. Without this cycle, workers release the session's memory at once.
        self.describe = None
