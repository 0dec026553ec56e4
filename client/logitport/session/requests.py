"""The requests of a session: admission, removal, and failures."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from logitport.errors import LogitportError, ServerUnavailable, from_proto
from logitport.session.frames import add_frames, check_added, removal
from logitport.session.pending_request import PendingRequest
from logitport.session.program_binding import ProgramBinding
from logitport.session.recovery import Recovery
from logitport.session.request_table import RequestTable
from logitport.session.session_move import SessionMove
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from logitport.request import Request
    from logitport.session.chain_programs import ChainPrograms
    from logitport.session.channel import FrameChannel
    from logitport.session.frames import Handle
    from logitport.session.moves import Moves

_T = TypeVar("_T")


class SessionRequests:
    """The requests of a session, on its server.

    Args:
        channel: exchanges frames with the server.
        restore: registers the client's processors with a server that lacks them; see `Registrations.restore`.
        reconnect_seconds: how long to try to reconnect; with 0 there is one attempt.
        programs: binds the programs that the engine runs.
        moves: opens connections to other servers; None if there are none.

    Attributes:
        table: the requests, by slot.
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
        self._channel = channel
        self.table = RequestTable()
        binding = ProgramBinding(programs, self.table)
        self._recovery = Recovery(self.table, channel, binding, restore, reconnect_seconds, moves)
        self._moves = moves
        self._move = SessionMove(self.table, channel, binding, self._recovery, moves) if moves is not None else None
        self.resyncs = 0

    def __len__(self) -> int:
        return len(self.table.handles)

    @property
    def lost(self) -> Mapping[Handle, LogitportError]:
        """The error of each request that the server does not hold any more and that is not sent again."""
        return self.table.lost

    def check(self, handle: Handle) -> None:
        """Raise NotFound if the session does not hold the handle, SessionClosed after `clear`."""
        self.table.check(handle)

    def add(self, request: Request) -> Handle:
        """Admit a request. Raises as `Session.add`."""
        (handle,) = self._candidates([request])
        (frame,) = add_frames([handle])
        added = self._exchange_added(frame)
        for failure in added.failures:
            raise from_proto(failure.error)
        chain = added.chains[0]
        self.table.hold(handle, reads_logits=bool(added.reads_logits[0]), chain=chain)
        self._bind({handle: chain})
        if (error := self.table.take_error(handle)) is not None:
            raise error
        return handle

    def begin_add(self, requests: Sequence[Request]) -> list[PendingRequest]:
        """Begin to admit requests. Raises as `Session.begin_add`."""
        unsent = [PendingRequest(self, handle) for handle in self._candidates(requests)]
        begun: list[PendingRequest] = []
        try:
            for frame in add_frames([pending.candidate for pending in unsent], in_background=True):
                added = self._exchange_added(frame)
                sent = unsent[len(begun) : len(begun) + len(frame.requests)]
                for pending in sent:
                    self.table.hold_pending(pending)
                begun += sent
                self._settle(frame, added)
        except LogitportError:  # the caller does not receive them
            self._withdraw(begun)
            raise
        return begun

    def poll(self) -> list[PendingRequest]:
        """Return the pending requests with an admission that has ended since the last call."""
        if self._channel.ended_admissions != 0:
            self.collect()
        self._channel.ended_admissions = None
        settled, self.table.settled = self.table.settled, []
        return settled

    def collect(self) -> None:
        """Receive the results of admissions in the background, if there are any."""
        if self.table.pending or self.table.restoring:
            frame = processing_pb2.AddRequests(in_background=True)
            self._settle(frame, self._exchange_added(frame))

    def take_settled(self, pending: PendingRequest) -> None:
        """Leave this request out of the result of `poll`."""
        self.table.take_settled(pending)

    def cancel(self, pending: PendingRequest) -> None:
        """End the admission of a request, or remove the request. Does nothing if it was refused or removed."""
        handle = pending.candidate
        if self.table.pending.get(handle.slot) is pending:
            self.table.remove_pending(pending)
            self._drop([handle])
        elif self.table.handles.get(handle.slot) is handle:
            pending.cancelled = True
            self.take_settled(pending)
            self.remove(handle)

    def remove(self, *handles: Handle) -> None:
        """Drop requests. Raises NotFound as `Session.remove`."""
        self.table.check_distinct(handles)
        for handle in handles:
            self.table.remove(handle)
        if handles:
            self._drop(handles)

    def fail(self, errors: Mapping[Handle, LogitportError]) -> None:
        """Fail requests: the server drops them; the session keeps their handles, and each step reports the error."""
        self.table.lose(errors)
        if errors:
            self._drop(list(errors))

    def clear(self) -> None:
        """Drop all handles, cancel the pending requests, and mark the session as closed."""
        self.table.clear()
        if self._moves is not None:
            self._moves.cancel()

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Call `FrameChannel.exchange`; if the connection is lost, repeat it on a new one."""
        return self.with_reconnect(lambda: self._channel.exchange(frame))

    def with_reconnect(self, call: Callable[[], _T]) -> _T:
        """See `Recovery.with_reconnect`."""
        return self._recovery.with_reconnect(call)

    def move(self) -> None:
        """Move the session if its server states that it should; see `SessionMove.move`."""
        if self._move is not None:
            self._move.move()

    def end_restoring(self, handles: Iterable[Handle]) -> None:
        """See `Recovery.end_restoring`."""
        self._recovery.end_restoring(handles)

    def resend(self, handles: Sequence[Handle]) -> None:
        """Send these requests again with their present histories; refused ones are added to `lost`."""
        self.resyncs += len(handles)
        self._recovery.send(handles)

    def _candidates(self, requests: Sequence[Request]) -> list[Handle]:
        return self.table.candidates(requests, self._channel.opened.max_requests)

    def _withdraw(self, begun: Sequence[PendingRequest]) -> None:
        """Drop requests whatever the state of their admissions, with one frame: each frame may wait for a server."""
        dropped = []
        for pending in begun:
            handle = pending.candidate
            self.take_settled(pending)
            if self.table.pending.get(handle.slot) is pending:
                self.table.remove_pending(pending)
                dropped.append(handle)
            elif self.table.handles.get(handle.slot) is handle:
                self.table.remove(handle)
                dropped.append(handle)
        if dropped:
            with suppress(LogitportError):
                self._drop(dropped)

    def _exchange_added(self, frame: processing_pb2.AddRequests) -> processing_pb2.RequestsAdded:
        added = self.exchange(processing_pb2.SessionRequest(add=frame)).added
        check_added(frame, added)
        return added

    def _settle(self, frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> None:
        """Settle the requests of a frame, and bind the programs of those that were admitted, also of restored ones."""
        admitted = self.table.settle(frame, added)
        restored = self.table.take_restored(added)
        # Last: a connection that is lost while programs are fetched is restored with all admitted requests.
        try:
            self._bind({pending.candidate: chain for pending, chain in admitted}, restored)
        except LogitportError as error:
            for pending, _ in admitted:
                pending.handle, pending.error = None, error
            raise
        self.table.finish(admitted)

    def _bind(
        self,
        chains: Mapping[Handle, processing_pb2.AdmittedChain],
        restored: Sequence[tuple[Handle, processing_pb2.AdmittedChain]] = (),
    ) -> None:
        """Bind the programs of admitted requests that the engine runs. Those for which that fails become `lost`.

        Args:
            chains: those of new requests.
            restored: those of requests that were admitted again.

        Raises:
            ServerUnavailable: no server could be reached; the new requests are removed.
        """
        try:
            try:
                for handle, chain in (*restored, *chains.items()):
                    self._recovery.bind(handle, chain)
            except ServerUnavailable as error:
                if error.timed_out:
                    raise
                # Sends the requests to the next server, and binds their programs.
                self._recovery.reconnect(lambda: None)
        except BaseException as error:
            if not isinstance(error, ServerUnavailable) or error.timed_out:
                with suppress(LogitportError):
                    self._drop(list(chains))
            for handle in chains:
                self.table.remove(handle)
            raise

    def _drop(self, handles: Sequence[Handle]) -> None:
        self.exchange(removal(handles))
