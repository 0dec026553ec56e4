"""Description and activity of an open session, for operators."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from logitport_proto import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import processing_pb2
    from logitport_session.engine_session.session import EngineSession

_MAX_TEXT_LENGTH = 256  # of texts that the engine has sent

# gRPC's name for the other end of a connection: "ipv4:127.0.0.1:40312", "ipv6:%5B::1%5D:40312" or "unix:".
_PEER_SCHEME = re.compile(r"ipv[46]:(?=.)")


class SessionActivity:
    """Description and activity of one open session. One thread records at a time; others may describe.

    Args:
        peer: gRPC's name for the engine's end of the connection.
    """

    def __init__(
        self,
        session: EngineSession,
        session_id: str,
        opening: processing_pb2.OpenSession,
        peer: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._opened_at = self._last_step_at = clock()
        self._steps = 0
        self._fixed = admin_pb2.SessionInfo(
            session_id=session_id,
            principal=session.principal.name,
            engine=opening.engine[:_MAX_TEXT_LENGTH],
            model_name=opening.model_name[:_MAX_TEXT_LENGTH],
            peer=readable_peer(peer)[:_MAX_TEXT_LENGTH],
            max_requests=session.max_requests,
            vocab_size=opening.vocab_size,
            datatype=opening.datatype,
            device=opening.device[:_MAX_TEXT_LENGTH],
            can_move=opening.can_move,
        )

    def record_step(self) -> None:
        """Count a step that Python has computed. The session counts the others."""
        self._last_step_at = self._clock()
        self._steps += 1

    def describe(self, *, transport: str, should_move: bool) -> admin_pb2.SessionInfo:
        """Describe the session. On any thread."""
        info = admin_pb2.SessionInfo()
        info.CopyFrom(self._fixed)
        now = self._clock()
        info.transport = transport
        info.age_seconds = now - self._opened_at
        info.requests = len(self._session)
        info.pending_requests = self._session.pending
        compiled_steps, last_compiled_at = self._session.compiled_activity
        info.steps = self._steps + compiled_steps
        if info.steps:
            info.last_step_age_seconds = max(0.0, now - max(self._last_step_at, last_compiled_at))
        info.should_move = should_move
        return info


def readable_peer(peer: str) -> str:
    """Return "HOST:PORT" or "unix" for gRPC's name of a peer; another name unchanged."""
    if peer.startswith("unix:"):
        return "unix"
    return unquote(_PEER_SCHEME.sub("", peer))
