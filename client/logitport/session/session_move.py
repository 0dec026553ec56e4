"""The move of a session to another server, between two steps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, from_proto
from logitport.session.frames import add_frames, check_added
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.channel import FrameChannel
    from logitport.session.frame_connection import FrameConnection
    from logitport.session.frames import Handle
    from logitport.session.moves import Moves
    from logitport.session.program_binding import ProgramBinding
    from logitport.session.recovery import Recovery
    from logitport.session.request_table import RequestTable

logger = logging.getLogger(__name__)

# Time for each frame with requests of a session that moves: its server could still process the step.
_MOVE_SECONDS = 3.0


class SessionMove:
    """Moves the requests of a session to a connection that `Moves` has opened.

    Args:
        table: the requests.
        channel: exchanges frames with the present server.
        binding: binds the programs that the engine runs.
        recovery: settles pending requests after the move.
        moves: opens connections to other servers.
    """

    def __init__(
        self, table: RequestTable, channel: FrameChannel, binding: ProgramBinding, recovery: Recovery, moves: Moves
    ) -> None:
        self._table = table
        self._channel = channel
        self._binding = binding
        self._recovery = recovery
        self._moves = moves

    def move(self) -> None:
        """Move the session if its server states that it should, another one takes all requests, and no state is lost.

        The present connection is kept until then. A step in which no other server is ready is not delayed.

        Raises:
            ServerUnavailable: the new connection was lost, and there is none now.
        """
        if not self._channel.should_move:
            return
        self._channel.drain_reply()
        if self._table.restoring:
            return
        if any(handle.processed for handle in self._table.handles.values()):
            self._moves.cancel()
            return
        candidate = self._moves.take(len(self._table))
        if candidate is None:
            return
        sent = self._table.kept
        before = [handle.admission for handle in sent]
        try:
            pending = self._offer(candidate.connection, sent)
        except BaseException as error:
            for handle, admission in zip(sent, before, strict=True):
                handle.admission = admission
            self._moves.settle(candidate, moved=False)
            if not isinstance(error, LogitportError):
                raise
            target = candidate.connection.transport.target
            logger.info("a session does not move to %s, which does not take all its requests: %s", target, error)
            return
        self._channel.adopt(candidate.connection)
        self._moves.settle(candidate, moved=True)
        self._table.refused = candidate.refused
        for frame, added in pending:
            self._recovery.settle(frame, added)

    def _offer(
        self, connection: FrameConnection, handles: Sequence[Handle]
    ) -> list[tuple[processing_pb2.AddRequests, processing_pb2.RequestsAdded]]:
        """Add requests on another connection, and begin the pending admissions there.

        Returns:
            The frames of the pending admissions, and the replies.

        Raises:
            LogitportError: the server refuses one of them, or does not reply in time.
        """

        def exchange(frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
            return connection.exchange(frame, _MOVE_SECONDS)

        def add(frame: processing_pb2.AddRequests) -> processing_pb2.RequestsAdded:
            added = exchange(processing_pb2.SessionRequest(add=frame)).added
            check_added(frame, added)
            for failure in added.failures:
                raise from_proto(failure.error)
            return added

        by_slot = {handle.slot: handle for handle in handles}
        for frame in add_frames(handles):
            added = add(frame)
            for index, entry in enumerate(frame.requests):
                handle, chain = by_slot[entry.slot], added.chains[index]
                handle.admitted(chain, reads_logits=bool(added.reads_logits[index]))
                self._binding.bind(handle, chain, exchange)
        candidates = [pending.candidate for pending in self._table.pending.values()]
        return [(frame, add(frame)) for frame in add_frames(candidates, in_background=True)]
