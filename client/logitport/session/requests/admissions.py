"""Admissions of a session's requests: their frames, the replies, and the programs that the engine runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded, LogitportError, ServerUnavailable, StateLost, from_proto
from logitport.session.requests.program_trust import LeftToServer
from logitport.session.requests.request_frames import add_frames, check_added, removal, take_removed
from logitport.session.requests.request_table import late_error, slow_error
from logitport.system.backoff import NONE, Backoff
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from logitport.session.connection.frame_channel import FrameChannel
    from logitport.session.handle import Handle
    from logitport.session.requests.chain_programs import ChainPrograms
    from logitport.session.requests.request_table import RequestTable

    # Sends a frame, and returns its reply.
    Exchange = Callable[[processing_pb2.SessionRequest], processing_pb2.SessionResponse]

# How long a reconnect waits for requests that the server admits in the background, while other requests of the session
# are ready and no admission ends. Workers of many trust domains take longer together, but one ends after another.
QUIET_SECONDS = 0.25
# How long it waits in any case: as long as a hook waits for first admissions.
MAX_RESTORE_SECONDS = 5.0

# Between two frames that collect the results of admissions.
_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05

# A larger frame is not posted: its refusal by the server would end the connection.
_MAX_POSTED_BYTES = 1 << 18


class Admissions:
    """Sends requests on the present connection, and enters the replies into the table.

    Each method may raise ServerUnavailable: the connection was lost. A reconnect then sends all requests again.

    Args:
        table: the requests of the session.
        channel: exchanges frames with the server.
        programs: fetches and verifies programs.

    Attributes:
        answers: frames of `enter`, and their replies, which `settle` has not entered into the table yet.
    """

    def __init__(self, table: RequestTable, channel: FrameChannel, programs: ChainPrograms) -> None:
        self._table = table
        self._channel = channel
        self._programs = programs
        self.answers: list[tuple[processing_pb2.AddRequests, processing_pb2.SessionResponse]] = []

    def add(self, handle: Handle) -> None:
        """Admit a request that is not in the table. Raises the error of a refusal."""
        (frame,) = add_frames([handle])
        added = _exchange(self._channel.exchange, frame)
        _check_accepted(added)
        try:
            self._bind(self._channel.exchange, handle, added.chains[0], reads_logits=bool(added.reads_logits[0]))
        except ServerUnavailable:
            raise
        except LogitportError:
            self.drop([handle])
            raise

    def send(self, handles: Sequence[Handle], *, in_background: bool = False) -> None:
        """Send requests of the table, pending ones or others, which become `restoring` until they are admitted."""
        table = self._table
        table.restoring.update(
            {it.slot: it for it in handles if it.slot not in table.pending and it.slot not in table.entering}
        )
        by_slot = {handle.slot: handle for handle in handles}
        for frame in add_frames(handles, in_background=in_background):
            try:
                self.begin(frame)
            except LimitExceeded as error:  # this server's message limit may be lower than the previous one's
                for entry in frame.requests:
                    self._table.refuse(by_slot[entry.slot], error)
            except LogitportError:
                for slot in by_slot:
                    self._table.restoring.pop(slot, None)
                raise

    def begin(self, frame: processing_pb2.AddRequests) -> None:
        """Send a frame with pending or restoring requests. Raises the error of a refused frame."""
        added = _exchange(self._channel.exchange, frame)
        self.settle()
        self._settle(frame, added)

    def enter(self, frame: processing_pb2.AddRequests) -> None:
        """Send a frame with entering requests and return at once. A large one raises its refusal, as `begin`."""
        if frame.ByteSize() > _MAX_POSTED_BYTES:
            self.begin(frame)
            return
        answers = self.answers  # not this object: the channel would keep a dropped session
        self._channel.post(processing_pb2.SessionRequest(add=frame), lambda reply: answers.append((frame, reply)))

    def settle(self) -> None:
        """Enter the replies to posted frames that were received. Fetches programs, and waits for those only."""
        while self.answers:
            frame, reply = self.answers.pop(0)
            if reply.HasField("error"):
                self._refuse(frame, from_proto(reply.error))
            else:
                check_added(frame, reply.added)
                self._settle(frame, reply.added)

    def end_entering(self, handles: Collection[Handle]) -> None:
        """Wait for the admissions of those of these requests that are `entering`. Those that take too long fail."""
        self.settle()
        began = time.monotonic()
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, NONE)
        while waiting := self._table.entering_of(handles):
            waited = time.monotonic() - began
            late = [each for each in waiting if waited >= each.seconds]
            for each in late:
                self._table.lose(each.handle, slow_error(each.seconds))
            if late:
                self.drop([each.handle for each in late])
                continue
            self.collect()
            if self._table.entering_of(handles):
                backoff.wait()

    def collect(self) -> None:
        """Receive the results of admissions in the background, if there are any."""
        if self._table.pending or self._table.restoring or self._table.entering:
            self.begin(processing_pb2.AddRequests(in_background=True))

    def drop(self, handles: Sequence[Handle]) -> None:
        """Make the server drop requests. Does not wait for its reply."""
        self._channel.post(removal(handles), take_removed)

    def end_restoring(self, handles: Iterable[Handle]) -> None:
        """Fail these requests if they are `restoring` and have on_error="abort"; their step cannot wait for them."""
        late = [handle for handle in handles if self._table.is_restoring(handle) and not handle.skips]
        for handle in late:
            self._table.lose(handle, late_error(handle))
        if late:
            self.drop(late)

    def restore(self) -> None:
        """Send all requests on a new connection. Those with state that it does not have become `lost`."""
        for handle in self._table.kept:
            if handle.processed:
                self._table.lost[handle] = StateLost(
                    f"request {handle.request_id!r}: the connection to the server that processed its logits was lost, "
                    "and with it the state of its processors; remove the request and add it again"
                )
        self.answers.clear()  # of the connection before
        self._table.restoring.clear()
        self.send(self._table.kept, in_background=True)
        self.send(self._table.candidates, in_background=True)
        self._await_restored()

    def offer(self, exchange: Exchange) -> Callable[[], None]:
        """Send all requests on another connection, which holds none.

        Returns:
            Enters the replies for the pending requests into the table, once the other connection is the present one.

        Raises:
            LogitportError: the server refuses a request, or does not reply in time. No request has changed.
        """
        handles = self._table.kept
        by_slot = {handle.slot: handle for handle in handles}
        before = [handle.admission for handle in handles]
        begun = []
        try:
            for frame in add_frames(handles):
                added = _exchange(exchange, frame)
                _check_accepted(added)
                for index, entry in enumerate(frame.requests):
                    reads_logits = bool(added.reads_logits[index])
                    self._bind(exchange, by_slot[entry.slot], added.chains[index], reads_logits=reads_logits)
            for frame in add_frames(self._table.candidates, in_background=True):
                added = _exchange(exchange, frame)
                _check_accepted(added)
                begun.append((frame, added))
        except BaseException:
            for handle, admission in zip(handles, before, strict=True):
                handle.admission = admission
            raise

        def settle() -> None:
            for frame, added in begun:
                self._settle(frame, added)

        return settle

    def _await_restored(self) -> None:
        """Wait for `restoring` requests, but not for long: all requests of the engine wait, too."""
        restoring = self._table.restoring
        some_are_ready = len(self._table.kept) > len(restoring) + len(self._table.entering)
        began = progress = time.monotonic()
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, NONE)
        while restoring:
            now = time.monotonic()
            if now - began >= MAX_RESTORE_SECONDS or (some_are_ready and now - progress >= QUIET_SECONDS):
                return
            backoff.wait()
            before = len(restoring)
            self.collect()
            if len(restoring) < before:
                progress, some_are_ready = time.monotonic(), True
                backoff.reset()

    def _settle(self, frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> None:
        """Enter the ended admissions of a reply: of its frame, and in the background."""
        refused = {failure.slot: failure.error for failure in added.failures}
        for index, entry in enumerate(frame.requests):
            if added.pending and added.pending[index]:
                continue
            if (handle := self._table.awaited(entry)) is None:
                continue
            if entry.slot in refused:
                self._table.refuse(handle, from_proto(refused[entry.slot]))
            else:
                self._admit(handle, added.chains[index], reads_logits=bool(added.reads_logits[index]))
        for ended in added.ended:
            if (handle := self._table.awaited(ended)) is None:
                continue
            if ended.HasField("error"):
                self._table.refuse(handle, from_proto(ended.error))
            else:
                self._admit(handle, ended.chain, reads_logits=ended.reads_logits)

    def _refuse(self, frame: processing_pb2.AddRequests, error: LogitportError) -> None:
        """Handle a refused frame: each of its requests is sent alone, to find those that cannot be sent."""
        for entry in frame.requests:
            if (handle := self._table.awaited(entry)) is None:
                continue
            try:
                if len(frame.requests) == 1:
                    raise error
                (alone,) = add_frames([handle], in_background=True)
                self.begin(alone)
            except ServerUnavailable:
                raise
            except LogitportError as refusal:
                self._table.refuse(handle, refusal)

    def _admit(self, handle: Handle, chain: processing_pb2.AdmittedChain, *, reads_logits: bool) -> None:
        """Enter an admission. If the programs of the request cannot run here, it is refused."""
        try:
            self._bind(self._channel.exchange, handle, chain, reads_logits=reads_logits)
        except ServerUnavailable:
            raise
        except LogitportError as error:
            self._table.refuse(handle, error)
            self.drop([handle])
        else:
            self._table.admit(handle)

    def _bind(
        self, exchange: Exchange, handle: Handle, chain: processing_pb2.AdmittedChain, *, reads_logits: bool
    ) -> None:
        """Record an admission, and bind the programs of the request, or make the server run them.

        Raises the errors of `ChainPrograms.bind`.
        """

        def fetch(digests: Sequence[str]) -> processing_pb2.Programs:
            wanted = processing_pb2.GetPrograms(digests=digests)
            return exchange(processing_pb2.SessionRequest(get_programs=wanted)).programs

        handle.admitted(chain, reads_logits=reads_logits)
        try:
            self._programs.bind(handle, chain, fetch, self._table.handles.values())
        except LeftToServer:
            handle.programs, handle.programs_on_server = (), True
            (frame,) = add_frames([handle])
            added = _exchange(exchange, frame)
            _check_accepted(added)
            handle.admitted(added.chains[0], reads_logits=bool(added.reads_logits[0]))
        self._table.has_programs |= bool(handle.programs)
        handle.reads_logits = handle.sends_logits or bool(handle.programs)


def _exchange(exchange: Exchange, frame: processing_pb2.AddRequests) -> processing_pb2.RequestsAdded:
    added = exchange(processing_pb2.SessionRequest(add=frame)).added
    check_added(frame, added)
    return added


def _check_accepted(added: processing_pb2.RequestsAdded) -> None:
    """Raise the error of a refused request, if there is one."""
    for failure in added.failures:
        raise from_proto(failure.error) from None
