"""The requests that a session holds, and their recovery after a lost connection."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from logitport.errors import (
    DeadlineExceeded,
    LimitExceeded,
    LogitportError,
    ServerUnavailable,
    SessionClosed,
    StateLost,
    UnknownProcessor,
    UnknownRequest,
    from_proto,
    to_proto,
)
from logitport.session.frames import Handle, add_frames, chain_at, check_added
from logitport.session.pending_request import PendingRequest
from logitport.session.program_trust import LeftToServer
from logitport.session.slots import Slots
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.request import Request
    from logitport.session.chain_programs import ChainPrograms
    from logitport.session.channel import FrameChannel
    from logitport.session.frame_connection import FrameConnection
    from logitport.session.moves import Moves
    from logitport_proto import common_pb2

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

# Between two attempts to reconnect, with jitter: engines that lost one server must not all reconnect at once.
_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 2.0
# Time for each frame with requests of a session that moves: its server could still process the step.
_MOVE_SECONDS = 3.0


class SessionRequests:
    """The requests of a session: a map from slot to handle.

    Args:
        channel: exchanges frames with the server.
        restore: registers the client's processors with a server that lacks them; see `Registrations.restore`.
        reconnect_seconds: how long to try to reconnect; with 0 there is one attempt.
        programs: binds the programs that the engine runs.
        moves: opens connections to other servers; None if there are none.

    Attributes:
        lost: the error of each request that the server does not hold any more and that is not sent again.
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
        self._moves = moves
        self._programs = programs
        self._restore = restore
        self._reconnect_seconds = reconnect_seconds
        self._handles: dict[int, Handle] = {}
        # Requests that the server admits in the background, by slot; and those that `poll` has not returned yet.
        self._pending: dict[int, PendingRequest] = {}
        self._settled: list[PendingRequest] = []
        # The error of each registration that the present server refused, by digest.
        self._refused: dict[str, LogitportError] = {}
        self._closed = False
        # The refusal of another session by the last server. It may still hold the session that was lost, and another
        # server may have room: so the next attempt may succeed.
        self._no_room: LimitExceeded | None = None
        self._slots = Slots()
        self.lost: dict[Handle, LogitportError] = {}
        self.resyncs = 0

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def _held(self) -> int:
        """Number of requests that a new connection gets."""
        return len(self._handles) + len(self._pending)

    def check(self, handle: Handle) -> None:
        """Raise UnknownRequest if the session does not hold the handle, SessionClosed after `clear`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        if not isinstance(handle, Handle):
            kind = type(handle).__name__
            raise UnknownRequest(
                f"a value of type {kind} is not a handle: pass the result of Session.add, or the handle of a pending "
                "request whose admission has ended"
            )
        if self._handles.get(handle.slot) is not handle:
            raise UnknownRequest(f"{handle!r} is not in this session: it was removed, or belongs to another session")

    def add(self, request: Request) -> Handle:
        """Admit a request. Raises as `Session.add`."""
        handle = self._candidate(request)
        (frame,) = add_frames([handle])
        added = self._exchange_added(frame)
        for failure in added.failures:
            raise from_proto(failure.error)
        self._slots.occupy(handle.slot)
        self._hold(handle, reads_logits=bool(added.reads_logits[0]), chain=chain_at(added, 0))
        self._bind({handle: chain_at(added, 0)})
        if (error := self._take_error(handle)) is not None:
            raise error
        return handle

    def begin_add(self, request: Request) -> PendingRequest:
        """Begin to admit a request. Raises as `Session.begin_add`."""
        handle = self._candidate(request)
        (frame,) = add_frames([handle], in_background=True)
        added = self._exchange_added(frame)
        self._slots.occupy(handle.slot)
        pending = self._pending[handle.slot] = PendingRequest(self, handle)
        try:
            self._settle_added(frame, added)
        except LogitportError:  # the caller does not receive it
            self.take_settled(pending)
            with suppress(LogitportError):
                self.cancel(pending)
            raise
        return pending

    def poll(self) -> list[PendingRequest]:
        """Return the pending requests whose admission has ended since the last call."""
        if self._channel.ended_admissions != 0:
            self.collect()
        self._channel.ended_admissions = None
        settled, self._settled = self._settled, []
        return settled

    def collect(self) -> None:
        """Receive the results of admissions in the background, if there are any."""
        if self._pending:
            frame = processing_pb2.AddRequests(in_background=True)
            self._settle_added(frame, self._exchange_added(frame))

    def take_settled(self, pending: PendingRequest) -> None:
        """Leave this request out of the result of `poll`."""
        self._settled = [other for other in self._settled if other is not pending]

    def cancel(self, pending: PendingRequest) -> None:
        """End the admission of a request, or remove the request. Does nothing if it was refused or removed."""
        handle = pending.candidate
        if self._pending.get(handle.slot) is pending:
            del self._pending[handle.slot]
            pending.cancelled = handle.removed = True
            self._slots.release(handle.slot)
            self._drop([handle])
        elif self._handles.get(handle.slot) is handle:
            pending.cancelled = True
            self.take_settled(pending)
            self.remove(handle)

    def remove(self, handle: Handle) -> None:
        """Drop a request. Raises UnknownRequest."""
        self.check(handle)
        del self._handles[handle.slot]
        handle.removed = True
        self.lost.pop(handle, None)
        self._slots.release(handle.slot)
        self._drop([handle])

    def fail(self, errors: Mapping[Handle, LogitportError]) -> None:
        """Fail requests: the server drops them; the session keeps their handles, and each step reports the error."""
        self.lost.update(errors)
        if errors:
            self._drop(list(errors))

    def clear(self) -> None:
        """Drop all handles, cancel the pending requests, and mark the session as closed."""
        self._handles.clear()
        for pending in self._pending.values():
            pending.cancelled = pending.candidate.removed = True
        self._pending.clear()
        self._closed = True
        if self._moves is not None:
            self._moves.cancel()

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Call `FrameChannel.exchange`; if the connection is lost, repeat it on a new one."""
        return self.with_reconnect(lambda: self._channel.exchange(frame))

    def with_reconnect(self, call: Callable[[], _T]) -> _T:
        """Return `call()`; if the connection is lost, reconnect and repeat it. Must not be nested.

        Raises:
            ServerUnavailable: no attempt succeeded within `reconnect_seconds`.
        """
        try:
            return call()
        except ServerUnavailable:
            return self._reconnect(call)

    def _reconnect(self, call: Callable[[], _T]) -> _T:
        deadline = time.monotonic() + self._reconnect_seconds

        def attempt() -> _T:
            self._recover(max(0.0, deadline - time.monotonic()))
            return call()

        # tenacity, and not a loop of our own: that is a retry policy to maintain.
        # Not gRPC's retry policy: it repeats one RPC, and an attempt is several (connect, register, replay, call).
        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, ServerUnavailable) or error is self._no_room),
            wait=wait_random_exponential(multiplier=_FIRST_BACKOFF_SECONDS, max=_MAX_BACKOFF_SECONDS),
            stop=stop_after_delay(self._reconnect_seconds),
            reraise=True,
        )
        return retrying(attempt)

    def move(self) -> None:
        """Move the session if its server states that it should, another one takes all requests, and no state is lost.

        The present connection is kept until then. A step in which no other server is ready is not delayed.

        Raises:
            ServerUnavailable: the new connection was lost, and there is none now.
        """
        if self._moves is None or not self._channel.should_move:
            return
        self._channel.drain_reply()
        if any(handle.processed for handle in self._handles.values()):
            self._moves.cancel()
            return
        candidate = self._moves.take(self._held)
        if candidate is None:
            return
        sent = [handle for handle in self._handles.values() if handle not in self.lost]
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
        self._refused = candidate.refused
        for frame, added in pending:
            self._settle_added(frame, added, recovering=True)

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
                handle, chain = by_slot[entry.slot], chain_at(added, index)
                handle.admitted(chain, reads_logits=bool(added.reads_logits[index]))
                self._bind_programs(handle, chain, exchange)
        candidates = [pending.candidate for pending in self._pending.values()]
        return [(frame, add(frame)) for frame in add_frames(candidates, in_background=True)]

    def resend(self, handles: Sequence[Handle]) -> None:
        """Send these requests again with their present histories; refused ones are added to `lost`."""
        self.resyncs += len(handles)
        self._send(handles)

    def _recover(self, wait_seconds: float) -> None:
        """Reconnect, and send again every request with a state that follows from its history; others become `lost`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        if self._moves is not None:
            self._moves.cancel()
        try:
            self._channel.reopen(wait_seconds, self._held)
        except LimitExceeded as error:
            self._no_room = error
            raise
        self._restore_on_channel()

    def _restore_on_channel(self) -> None:
        """Send all requests on a new connection. Raises ServerUnavailable if that connection cannot be used."""
        try:
            self._restore_requests()
        except (ServerUnavailable, DeadlineExceeded) as error:
            raise self._channel.lose(error) from None  # a session that lacks requests must not be used
        except LogitportError as error:
            self._channel.lose(error)
            raise

    def _restore_requests(self) -> None:
        self._refused = self._restore()
        for handle in self._handles.values():
            if handle.processed and handle not in self.lost:
                self.lost[handle] = StateLost(
                    f"request {handle.request_id!r}: the connection to the server that processed its logits was lost, "
                    "and with it the state of its processors; remove the request and add it again"
                )
        self._send([handle for handle in self._handles.values() if handle not in self.lost])
        self.lost = {handle: self._explained(handle, error) for handle, error in self.lost.items()}
        self._send_pending()

    def _candidate(self, request: Request) -> Handle:
        """Make the handle of a new request, for the first free slot. Raises LimitExceeded if there is none."""
        limit = self._channel.opened.max_requests
        if self._held >= limit:
            raise LimitExceeded(f"all {limit} slots are taken; remove requests that have ended, or raise max_requests")
        return Handle(*self._slots.next(), request)

    def _hold(self, handle: Handle, *, reads_logits: bool, chain: processing_pb2.AdmittedChain) -> None:
        """Record that the server has admitted a request."""
        handle.admitted(chain, reads_logits=reads_logits)
        self._handles[handle.slot] = handle

    def _bind(self, chains: Mapping[Handle, processing_pb2.AdmittedChain]) -> None:
        """Bind the programs of admitted requests that the engine runs. Those for which that fails become `lost`.

        Raises:
            ServerUnavailable: no server could be reached; these requests are removed.
        """
        try:
            try:
                for handle, chain in chains.items():
                    self._rebind(handle, chain)
            except ServerUnavailable:
                self._reconnect(lambda: None)  # which sends the requests to the next server, and binds their programs
        except BaseException as error:
            if not isinstance(error, ServerUnavailable):
                with suppress(LogitportError):
                    self._drop(list(chains))
            for handle in chains:
                self._forget(handle)
            raise

    def _bind_programs(
        self,
        handle: Handle,
        chain: processing_pb2.AdmittedChain,
        exchange: Callable[[processing_pb2.SessionRequest], processing_pb2.SessionResponse],
    ) -> None:
        """Bind the programs of a request on the connection of `exchange`.

        Raises as `ChainPrograms.bind`, and ServerUnavailable: the connection was lost.
        """

        def fetch(digests: Sequence[str]) -> processing_pb2.Programs:
            wanted = processing_pb2.GetPrograms(digests=digests)
            return exchange(processing_pb2.SessionRequest(get_programs=wanted)).programs

        try:
            self._programs.bind(handle, chain, fetch, self._handles.values())
        except LeftToServer:
            handle.programs, handle.programs_on_server = (), True
            (frame,) = add_frames([handle])
            added = exchange(processing_pb2.SessionRequest(add=frame)).added
            check_added(frame, added)
            for failure in added.failures:
                raise from_proto(failure.error) from None
            handle.admitted(chain_at(added, 0), reads_logits=bool(added.reads_logits[0]))
        handle.reads_logits = handle.sends_logits or bool(handle.programs)

    def _take_error(self, handle: Handle) -> LogitportError | None:
        """Remove a new request if it is lost. Returns the error."""
        error = self.lost.get(handle)
        if error is not None:
            self._forget(handle)
        return error

    def _forget(self, handle: Handle) -> None:
        """Remove a request that the server does not hold."""
        self._handles.pop(handle.slot, None)
        handle.removed = True
        self.lost.pop(handle, None)
        self._slots.release(handle.slot)

    def _exchange_added(self, frame: processing_pb2.AddRequests) -> processing_pb2.RequestsAdded:
        added = self.exchange(processing_pb2.SessionRequest(add=frame)).added
        check_added(frame, added)
        return added

    def _settle_added(
        self, frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded, *, recovering: bool = False
    ) -> None:
        """Settle the requests of a frame that are not pending any more, and those whose admission has ended."""
        refused = {failure.slot: failure.error for failure in added.failures}
        admitted: list[tuple[PendingRequest, processing_pb2.AdmittedChain]] = []
        for index, entry in enumerate(frame.requests):
            if not (added.pending and added.pending[index]):
                chain = chain_at(added, index)
                settled = self._settle(entry, refused.get(entry.slot), bool(added.reads_logits[index]), chain)
                admitted += [(settled, chain)] if settled is not None else []
        for ended in added.ended:
            error = ended.error if ended.HasField("error") else None
            settled = self._settle(ended, error, ended.reads_logits, ended.chain)
            admitted += [(settled, ended.chain)] if settled is not None else []
        # Last: a connection that is lost while programs are fetched is restored with all admitted requests.
        if recovering:
            for pending, chain in admitted:
                self._rebind(pending.candidate, chain)
        else:
            try:
                self._bind({pending.candidate: chain for pending, chain in admitted})
            except LogitportError as error:
                for pending, _ in admitted:
                    pending.handle, pending.error = None, error
                raise
        for pending, _ in admitted:
            if (refusal := self._take_error(pending.candidate)) is not None:
                pending.handle, pending.error = None, refusal

    def _settle(
        self,
        entry: processing_pb2.SlottedRequest | processing_pb2.EndedAdmission,
        error: common_pb2.Error | None,
        reads_logits: bool,
        chain: processing_pb2.AdmittedChain,
    ) -> PendingRequest | None:
        """Record the end of an admission. Returns the pending request if it was admitted."""
        pending = self._pending.get(entry.slot)
        if pending is None or pending.candidate.generation != entry.generation:
            return None
        del self._pending[entry.slot]
        self._settled.append(pending)
        handle = pending.candidate
        if error is not None:
            pending.error = self._explained(handle, from_proto(error))
            handle.removed = True
            self._slots.release(handle.slot)
            return None
        self._hold(handle, reads_logits=reads_logits, chain=chain)
        pending.handle = handle
        return pending

    def _explained(self, handle: Handle, error: LogitportError) -> LogitportError:
        """Replace the error of an unknown processor by the reason for which the server has refused to register it."""
        if not isinstance(error, UnknownProcessor):
            return error
        return next((self._refused[it] for it in handle.digests() if it in self._refused), error)

    def _drop(self, handles: Sequence[Handle]) -> None:
        self.exchange(_removal(handles))

    def _send(self, handles: Sequence[Handle]) -> None:
        for frame in add_frames(handles):
            try:
                added = self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added
            except LimitExceeded as error:  # this server's message limit may be lower than the previous one's
                self.lost.update({self._handles[entry.slot]: error for entry in frame.requests})
                continue
            check_added(frame, added)
            refused = {failure.slot for failure in added.failures}
            for failure in added.failures:
                if failure.slot in self._handles:
                    self.lost[self._handles[failure.slot]] = from_proto(failure.error)
            for index, entry in enumerate(frame.requests):
                handle = self._handles.get(entry.slot)
                if handle is not None and entry.slot not in refused:
                    handle.admitted(chain_at(added, index), reads_logits=bool(added.reads_logits[index]))
                    self._rebind(handle, chain_at(added, index))

    def _rebind(self, handle: Handle, chain: processing_pb2.AdmittedChain) -> None:
        """Bind the programs of a request on the present connection; it is lost if that fails."""
        try:
            self._bind_programs(handle, chain, self._channel.exchange)
        except (ServerUnavailable, DeadlineExceeded):
            raise
        except LogitportError as error:
            self.lost[handle] = error
            self._channel.exchange(_removal([handle]))

    def _send_pending(self) -> None:
        """Begin the pending admissions again, on a new connection."""
        for frame in add_frames([pending.candidate for pending in self._pending.values()], in_background=True):
            try:
                added = self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added
            except LimitExceeded as error:  # as in `_send`
                for entry in frame.requests:
                    self._settle(entry, to_proto(error), reads_logits=False, chain=processing_pb2.AdmittedChain())
            else:
                check_added(frame, added)
                self._settle_added(frame, added, recovering=True)


def _removal(handles: Sequence[Handle]) -> processing_pb2.SessionRequest:
    removal = processing_pb2.RemoveRequests(
        slots=np.array([handle.slot for handle in handles], "<i4").tobytes(),
        generations=np.array([handle.generation for handle in handles], "<i4").tobytes(),
    )
    return processing_pb2.SessionRequest(remove=removal)
