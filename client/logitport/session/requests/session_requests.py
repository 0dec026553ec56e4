"""The requests of a session: admission, removal, failures, and another connection after a lost one."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable
from logitport.session.requests.admissions import Admissions
from logitport.session.requests.pending_request import PendingRequest
from logitport.session.requests.request_frames import add_frames
from logitport.session.requests.request_table import RequestTable
from logitport.system.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.session.connection.frame_channel import FrameChannel
    from logitport.session.failover.moves import Moves
    from logitport.session.handle import Handle
    from logitport.session.requests.chain_programs import ChainPrograms
    from logitport.shipping.request import Request
    from logitport_proto import processing_pb2

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

# Between two attempts to reconnect, with jitter: engines that lost one server must not all reconnect at once.
FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 2.0

# Time for each frame with requests of a session that moves: its server could still process the step.
_MOVE_SECONDS = 3.0


class SessionRequests:
    """The requests of a session, on its server. If the connection is lost, they are sent to the next server.

    Args:
        channel: exchanges frames with the server.
        restore: registers the client's processors with a server that lacks them; see `Registrations.restore`.
        reconnect_seconds: how long to try to reconnect; with 0 there is one attempt.
        programs: the programs that the engine runs.
        moves: opens connections to other servers, or None.

    Attributes:
        table: the requests, by slot.
        admissions: sends them. Its methods are called within `with_reconnect`.
        resyncs: how often a history was sent again because the server's history differed.
    """

    def __init__(
        self,
        channel: FrameChannel,
        restore: Callable[[], dict[str, LogitportError]],
        reconnect_seconds: float,
        programs: ChainPrograms,
        moves: Moves | None = None,
    ) -> None:
        self.table = RequestTable()
        self.admissions = Admissions(self.table, channel, programs)
        self.resyncs = 0
        self._channel = channel
        self._restore = restore
        self._reconnect_seconds = reconnect_seconds
        self._moves = moves
        # Whether the last server has refused another session. It may still hold the session that was lost, and another
        # server may have room: so the next attempt may succeed. Not the error itself: its traceback refers to this
        # object, and that cycle would keep a session that is dropped until the next garbage collection.
        self._was_full = False

    def add(self, request: Request) -> Handle:
        """Admit a request. Raises the errors of `Session.add`."""
        opened = self._channel.opened
        (handle,) = self.table.new_handles([request], opened.max_requests)
        self.with_reconnect(lambda: self.admissions.add(handle))
        self.table.hold(handle)
        return handle

    def begin_add(self, requests: Sequence[Request]) -> list[PendingRequest]:
        """Begin to admit requests. Raises the errors of `Session.begin_add`."""
        opened = self._channel.opened
        handles = self.table.new_handles(requests, opened.max_requests)
        begun = [PendingRequest(self, handle) for handle in handles]
        self._begin(
            handles,
            hold=lambda index: self.table.hold_pending(begun[index]),
            send=self.admissions.begin,
            drop=lambda index: self.table.cancel(begun[index]),
        )
        return begun

    def enter(self, requests: Sequence[Request], seconds: float) -> list[Handle]:
        """Admit requests while their steps begin. Raises the errors of `Session.enter`."""
        if self._channel.should_move:
            self.with_reconnect(self.move)  # a step with an unanswered admission does not move
        if self.admissions.answers:
            self.settle()  # also of requests that were removed before any step
        handles = self.table.new_handles(requests, self._channel.opened.max_requests)
        self._begin(
            handles,
            hold=lambda index: self.table.enter(handles[index], seconds),
            send=self.admissions.enter,
            drop=lambda index: self.table.discard(handles[index]),
        )
        return handles

    def settle(self) -> None:
        """Enter the replies to frames of `enter` that were received."""
        self.with_reconnect(self.admissions.settle)

    def end_entering(self) -> None:
        """Wait for the admissions of all requests of `enter`."""
        self.with_reconnect(lambda: self.admissions.end_entering([it.handle for it in self.table.entering.values()]))

    def poll(self) -> list[PendingRequest]:
        """Return the pending requests with an admission that has ended since the last call."""
        if self._channel.ended_admissions != 0:
            self.collect()
        self._channel.ended_admissions = None
        settled, self.table.settled = self.table.settled, []
        return settled

    def collect(self) -> None:
        """Receive the results of admissions in the background, if there are any."""
        self.with_reconnect(self.admissions.collect)

    def cancel(self, pending: PendingRequest) -> None:
        """End the admission of a request, or remove the request. Does nothing if it was refused or removed."""
        if self.table.cancel(pending):
            self._drop([pending.candidate])

    def remove(self, *handles: Handle) -> None:
        """Drop requests. Raises the errors of `RequestTable.remove`."""
        self.table.remove(handles)
        self._drop(handles)

    def fail(self, errors: Mapping[Handle, LogitportError]) -> None:
        """Fail requests: the server drops them; the session keeps their handles, and each step reports the error."""
        for handle, error in errors.items():
            self.table.lose(handle, error)
        self._drop(list(errors))

    def resend(self, handles: Sequence[Handle]) -> None:
        """Send these requests again with their present histories; refused ones become `lost`."""
        self.resyncs += len(handles)
        self.admissions.send(handles)

    def clear(self) -> None:
        """Drop all handles, cancel the pending requests, and mark the session as closed."""
        self.table.clear()
        if self._moves is not None:
            self._moves.cancel()

    def with_reconnect(self, call: Callable[[], _T]) -> _T:
        """Return `call()`; if the connection is lost, reconnect and repeat it. Must not be nested.

        Raises:
            ServerUnavailable: no attempt succeeded within `reconnect_seconds`.
        """
        try:
            return call()
        except ServerUnavailable as error:
            if error.timed_out:
                raise
        return self._reconnect(call)

    def move(self) -> None:
        """Move the session if its server states that it should, another one takes all requests, and no state is lost.

        The present connection is kept until then. A step is not delayed if no other server is ready.

        Raises:
            ServerUnavailable: the new connection was lost, too.
        """
        if self._moves is None or not self._channel.should_move:
            return
        self._channel.drain_reply()
        self.admissions.settle()
        if self.table.restoring or self.table.entering:
            return
        if any(handle.processed for handle in self.table.handles.values()):
            self._moves.cancel()
            return
        candidate = self._moves.take(len(self.table))
        if candidate is None:
            return
        connection = candidate.connection
        try:
            settle = self.admissions.offer(lambda frame: connection.exchange(frame, _MOVE_SECONDS))
        except BaseException as error:
            self._moves.settle(candidate, moved=False)
            if not isinstance(error, LogitportError):
                raise
            target = connection.transport.target
            logger.info("a session does not move to %s, which does not take all its requests: %s", target, error)
            return
        self._channel.adopt(connection)
        self._moves.settle(candidate, moved=True)
        self.table.refused = candidate.refused
        settle()

    def _begin(
        self,
        handles: Sequence[Handle],
        hold: Callable[[int], object],
        send: Callable[[processing_pb2.AddRequests], object],
        drop: Callable[[int], bool],
    ) -> None:
        """Send new requests, each held before its frame is sent. If that raises, those still held are dropped."""
        begun = 0
        try:
            for frame in add_frames(handles, in_background=True):
                for _ in frame.requests:
                    hold(begun)
                    begun += 1
                try:
                    send(frame)
                except ServerUnavailable as error:
                    if error.timed_out:
                        raise
                    self._reconnect(lambda: None)  # sends the new requests, too
        except BaseException:  # the caller does not receive them
            dropped = [handle for index, handle in enumerate(handles[:begun]) if drop(index)]
            if dropped:
                # With one frame, and without a reconnect: each may wait for a server, and the attempt above has waited.
                with suppress(LogitportError):
                    self.admissions.drop(dropped)
            raise

    def _reconnect(self, call: Callable[[], _T]) -> _T:
        """Reconnect, and return `call()`. Raises the errors of `with_reconnect`."""
        # Not gRPC's retry policy: it repeats one RPC, and an attempt is several (connect, register, replay, call).
        backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, seconds=self._reconnect_seconds)
        while True:
            try:
                self._recover(backoff.remaining)
                return call()
            except (ServerUnavailable, LimitExceeded) as error:
                may_repeat = not error.timed_out if isinstance(error, ServerUnavailable) else self._was_full
                if not may_repeat or not backoff.wait():
                    raise

    def _recover(self, wait_seconds: float) -> None:
        """Reconnect, and send again every request with a state that follows from its history; others become `lost`."""
        self._was_full = False
        self.table.check_open()
        if self._moves is not None:
            self._moves.cancel()
        try:
            self._channel.reopen(wait_seconds, len(self.table))
        except LimitExceeded:
            self._was_full = True
            raise
        try:
            self.table.refused = self._restore()
            self.admissions.restore()
        except ServerUnavailable as error:
            raise self._channel.lose(error) from None  # a session that lacks requests must not be used
        except LogitportError as error:
            self._channel.lose(error)
            raise

    def _drop(self, handles: Sequence[Handle]) -> None:
        if handles:
            self.with_reconnect(lambda: self.admissions.drop(handles))
