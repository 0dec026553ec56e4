"""Recovery of a session after a lost connection: a new one, and all requests sent again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from logitport.core.backoff import NONE, Backoff
from logitport.errors import (
    LimitExceeded,
    LogitportError,
    ServerUnavailable,
    StateLost,
    from_proto,
)
from logitport.session.frames import add_frames, check_added, removal
from logitport.session.request_table import late_error
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport.session.channel import FrameChannel
    from logitport.session.frames import Handle
    from logitport.session.moves import Moves
    from logitport.session.program_binding import ProgramBinding
    from logitport.session.request_table import RequestTable

_T = TypeVar("_T")

# Between two attempts to reconnect, with jitter: engines that lost one server must not all reconnect at once.
FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 2.0

# How long a reconnect waits for requests that the server admits in the background, while other requests of the session
# are ready and no admission ends. Workers of many trust domains take longer together, but one ends after another.
QUIET_SECONDS = 0.25
# How long it waits in any case: as long as a hook waits for first admissions.
MAX_RESTORE_SECONDS = 5.0

# Between two frames that collect the results of admissions.
_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05


class Recovery:
    """Reconnects the channel of a session, and sends its requests.

    Args:
        table: the requests.
        channel: exchanges frames with the server.
        binding: binds the programs that the engine runs.
        restore: registers the client's processors with a server that lacks them; see `Registrations.restore`.
        reconnect_seconds: how long to try to reconnect; with 0 there is one attempt.
        moves: opens connections to other servers; None if there are none.
    """

    def __init__(
        self,
        table: RequestTable,
        channel: FrameChannel,
        binding: ProgramBinding,
        restore: Callable[[], dict[str, LogitportError]],
        reconnect_seconds: float,
        moves: Moves | None,
    ) -> None:
        self._table = table
        self._channel = channel
        self._binding = binding
        self._restore = restore
        self._reconnect_seconds = reconnect_seconds
        self._moves = moves
        # Whether the last server has refused another session. It may still hold the session that was lost, and another
        # server may have room: so the next attempt may succeed. Not the error itself: its traceback refers to this
        # object, and that cycle would keep a session that is dropped until the next garbage collection.
        self._was_full = False

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
        return self.reconnect(call)

    def reconnect(self, call: Callable[[], _T]) -> _T:
        """Reconnect, and return `call()`. Raises as `with_reconnect`."""
        # Not gRPC's retry policy: it repeats one RPC, and an attempt is several (connect, register, replay, call).
        backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, seconds=self._reconnect_seconds)
        while True:
            try:
                self._recover(backoff.remaining)
                return call()
            except (ServerUnavailable, LimitExceeded) as error:
                if not self._may_repeat(error) or not backoff.wait():
                    raise

    def _may_repeat(self, error: LogitportError) -> bool:
        return not error.timed_out if isinstance(error, ServerUnavailable) else self._was_full

    def _recover(self, wait_seconds: float) -> None:
        """Reconnect, and send again every request with a state that follows from its history; others become `lost`."""
        self._was_full = False
        self._table.check_open()
        if self._moves is not None:
            self._moves.cancel()
        try:
            self._channel.reopen(wait_seconds, len(self._table))
        except LimitExceeded:
            self._was_full = True
            raise
        try:
            self._restore_requests()
        except ServerUnavailable as error:
            raise self._channel.lose(error) from None  # a session that lacks requests must not be used
        except LogitportError as error:
            self._channel.lose(error)
            raise

    def _restore_requests(self) -> None:
        self._table.refused = self._restore()
        for handle in self._table.kept:
            if handle.processed:
                self._table.lost[handle] = StateLost(
                    f"request {handle.request_id!r}: the connection to the server that processed its logits was lost, "
                    "and with it the state of its processors; remove the request and add it again"
                )
        self._table.restoring.clear()
        self.send(self._table.kept, in_background=True)
        self._send_pending()
        self._await_restored()
        self._table.explain_lost()

    def send(self, handles: Sequence[Handle], *, in_background: bool = False) -> None:
        """Send requests on the present connection; refused ones become `lost`, pending ones `restoring`."""
        held, lost = self._table.handles, self._table.lost
        for frame in add_frames(handles, in_background=in_background):
            try:
                added = self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added
            except LimitExceeded as error:  # this server's message limit may be lower than the previous one's
                lost.update({held[entry.slot]: error for entry in frame.requests})
                continue
            check_added(frame, added)
            refused = {failure.slot for failure in added.failures}
            for failure in added.failures:
                if failure.slot in held:
                    lost[held[failure.slot]] = from_proto(failure.error)
            for index, entry in enumerate(frame.requests):
                handle = held.get(entry.slot)
                if handle is None or entry.slot in refused:
                    continue
                if added.pending and added.pending[index]:
                    self._table.restoring[entry.slot] = handle
                else:
                    handle.admitted(added.chains[index], reads_logits=bool(added.reads_logits[index]))
                    self.bind(handle, added.chains[index])
            self._bind_restored(added)

    def end_restoring(self, handles: Iterable[Handle]) -> None:
        """Fail these requests if they are `restoring` and have on_error="abort"; their step cannot wait for them.

        Must be called within `with_reconnect`, because it sends a frame.
        """
        late = [handle for handle in handles if self._table.is_restoring(handle) and not handle.skips]
        self._table.lose({handle: late_error(handle) for handle in late})
        if late:
            self._channel.exchange(removal(late))

    def bind(self, handle: Handle, chain: processing_pb2.AdmittedChain) -> None:
        """Bind the programs of a request on the present connection; it is lost if that fails."""
        try:
            self._binding.bind(handle, chain, self._channel.exchange)
        except ServerUnavailable:
            raise
        except LogitportError as error:
            self._table.lost[handle] = error
            self._channel.exchange(removal([handle]))

    def settle(self, frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> None:
        """Settle pending and restoring requests on a new connection."""
        admitted = self._table.settle(frame, added)
        for pending, chain in admitted:
            self.bind(pending.candidate, chain)
        self._table.finish(admitted)
        self._bind_restored(added)

    def _bind_restored(self, added: processing_pb2.RequestsAdded) -> None:
        for handle, chain in self._table.take_restored(added):
            self.bind(handle, chain)

    def _await_restored(self) -> None:
        """Wait for `restoring` requests, but not for long: all requests of the engine wait, too."""
        restoring = self._table.restoring
        some_are_ready = len(self._table.kept) > len(restoring)
        began = progress = time.monotonic()
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, NONE)
        while restoring:
            now = time.monotonic()
            if now - began >= MAX_RESTORE_SECONDS or (some_are_ready and now - progress >= QUIET_SECONDS):
                return
            pauses.wait()
            before = len(restoring)
            frame = processing_pb2.AddRequests(in_background=True)
            self.settle(frame, self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added)
            if len(restoring) < before:
                progress, some_are_ready = time.monotonic(), True
                pauses.reset()

    def _send_pending(self) -> None:
        """Begin the pending admissions again, on a new connection."""
        candidates = [pending.candidate for pending in self._table.pending.values()]
        for frame in add_frames(candidates, in_background=True):
            try:
                added = self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added
            except LimitExceeded as error:  # as in `send`
                self._table.refuse(frame, error)
            else:
                check_added(frame, added)
                self.settle(frame, added)
