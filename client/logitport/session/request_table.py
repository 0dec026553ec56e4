"""The requests that a session holds, by slot, and those whose admission has not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import (
    LimitExceeded,
    NotFound,
    ProcessorFailed,
    SessionClosed,
    from_proto,
)
from logitport.session.frames import Handle
from logitport.session.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport.request import Request
    from logitport.session.pending_request import PendingRequest
    from logitport_proto import common_pb2, processing_pb2

    # Pending requests that were admitted, and their chains.
    Admitted = Sequence[tuple[PendingRequest, processing_pb2.AdmittedChain]]


class RequestTable:
    """A map from slot to handle. Sends nothing.

    Attributes:
        handles: the requests that the server holds, by slot.
        changes: number of changes of `handles`.
        pending: the requests that the server admits in the background, by slot.
        settled: pending requests with an ended admission that `Session.poll` has not returned yet.
        restoring: requests of `handles`, by slot, that the present server admits in the background after a reconnect.
        lost: the error of each request that the server does not hold any more and that is not sent again.
        refused: the error of each registration that the present server refused, by digest.
        has_programs: whether this process has run programs of a request, now or before.
        closed: whether the session is closed.
    """

    def __init__(self) -> None:
        self.handles: dict[int, Handle] = {}
        self.changes = 0
        self.pending: dict[int, PendingRequest] = {}
        self.settled: list[PendingRequest] = []
        self.restoring: dict[int, Handle] = {}
        self.lost: dict[Handle, LogitportError] = {}
        self.refused: dict[str, LogitportError] = {}
        self.has_programs = False
        self.closed = False
        self._slots = Slots()

    def __len__(self) -> int:
        """Number of requests that a new connection gets."""
        return len(self.handles) + len(self.pending)

    @property
    def kept(self) -> list[Handle]:
        """The requests that are not lost."""
        return [handle for handle in self.handles.values() if handle not in self.lost]

    def check_open(self) -> None:
        """Raise SessionClosed after `clear`."""
        if self.closed:
            raise SessionClosed("the session is closed; open another with Client.session")

    def check(self, handle: Handle) -> None:
        """Raise NotFound if the session does not hold the handle, SessionClosed after `clear`."""
        self.check_open()
        if not isinstance(handle, Handle):
            kind = type(handle).__name__
            raise NotFound(
                f"a value of type {kind} is not a handle: pass the result of Session.add, or the handle of a pending "
                "request whose admission has ended"
            )
        if self.handles.get(handle.slot) is not handle:
            raise NotFound(f"{handle!r} is not in this session: it was removed, or belongs to another session")

    def check_distinct(self, handles: Sequence[Handle]) -> None:
        """Raise NotFound if the session does not hold a handle, or one occurs twice. Otherwise as `check`."""
        for handle in handles:
            self.check(handle)
        if len(set(handles)) < len(handles):
            raise NotFound("a handle occurs twice, and would be removed twice; pass each handle once")

    def candidates(self, requests: Sequence[Request], limit: int) -> list[Handle]:
        """Make the handles of new requests, for the first free slots. Raises LimitExceeded if there are too few."""
        if len(self) >= limit and requests:
            raise LimitExceeded(f"all {limit} slots are taken; remove requests that have ended, or raise max_requests")
        if len(self) + len(requests) > limit:
            raise LimitExceeded(
                f"{len(requests)} requests were added together, but {limit - len(self)} of {limit} slots are free; add "
                "fewer, remove requests that have ended, or raise max_requests"
            )
        places = self._slots.next(len(requests))
        return [Handle(*place, request) for place, request in zip(places, requests, strict=True)]

    def hold(self, handle: Handle, *, reads_logits: bool, chain: processing_pb2.AdmittedChain) -> None:
        """Record that the server has admitted a request."""
        self._slots.occupy(handle.slot)
        self._hold(handle, reads_logits=reads_logits, chain=chain)

    def hold_pending(self, pending: PendingRequest) -> None:
        """Record that the server has begun to admit a request."""
        slot = pending.candidate.slot
        self._slots.occupy(slot)
        self.pending[slot] = pending

    def remove(self, handle: Handle) -> None:
        """Remove a request, and free its slot."""
        self.handles.pop(handle.slot, None)
        self.changes += 1
        handle.removed = True
        if self.is_restoring(handle):
            del self.restoring[handle.slot]
        self.lost.pop(handle, None)
        self._slots.release(handle.slot)

    def lose(self, errors: Mapping[Handle, LogitportError]) -> None:
        """Add requests to `lost`, with their errors."""
        self.lost.update(errors)
        for handle in filter(self.is_restoring, errors):
            del self.restoring[handle.slot]

    def remove_pending(self, pending: PendingRequest) -> None:
        """Remove a pending request, and free its slot."""
        handle = pending.candidate
        del self.pending[handle.slot]
        pending.cancelled = handle.removed = True
        self._slots.release(handle.slot)

    def take_settled(self, pending: PendingRequest) -> None:
        """Leave this request out of `settled`."""
        self.settled = [other for other in self.settled if other is not pending]

    def take_error(self, handle: Handle) -> LogitportError | None:
        """Remove a new request if it is lost. Returns the error."""
        error = self.lost.get(handle)
        if error is not None:
            self.remove(handle)
        return error

    def explain_lost(self) -> None:
        """Replace the errors of unknown processors; see `refused`."""
        self.lost = {handle: self._explained(handle, error) for handle, error in self.lost.items()}

    def clear(self) -> None:
        """Drop all handles, cancel the pending requests, and mark the session as closed."""
        self.handles.clear()
        self.changes += 1
        for pending in self.pending.values():
            pending.cancelled = pending.candidate.removed = True
        self.pending.clear()
        self.restoring.clear()
        self.closed = True

    def settle(self, frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> Admitted:
        """Settle the requests of a frame that are not pending any more, and those with an ended admission.

        Returns:
            Those that were admitted. The caller binds their programs, and calls `finish` then.
        """
        refused = {failure.slot: failure.error for failure in added.failures}
        admitted: list[tuple[PendingRequest, processing_pb2.AdmittedChain]] = []
        for index, entry in enumerate(frame.requests):
            if not (added.pending and added.pending[index]):
                chain = added.chains[index]
                settled = self._settle(entry, refused.get(entry.slot), bool(added.reads_logits[index]), chain)
                admitted += [(settled, chain)] if settled is not None else []
        for ended in added.ended:
            error = ended.error if ended.HasField("error") else None
            settled = self._settle(ended, error, ended.reads_logits, ended.chain)
            admitted += [(settled, ended.chain)] if settled is not None else []
        return admitted

    def is_restoring(self, handle: Handle) -> bool:
        """Whether the request is one of `restoring`."""
        return self.restoring.get(handle.slot) is handle

    def take_restored(self, added: processing_pb2.RequestsAdded) -> list[tuple[Handle, processing_pb2.AdmittedChain]]:
        """Remove requests with an ended admission from `restoring`; refused ones become `lost`.

        Returns:
            Those that were admitted, and their chains. The caller binds their programs.
        """
        restored = []
        for ended in added.ended:
            handle = self.restoring.get(ended.slot)
            if handle is None or handle.generation != ended.generation:
                continue
            del self.restoring[ended.slot]
            if ended.HasField("error"):
                self.lost[handle] = self._explained(handle, from_proto(ended.error))
            else:
                handle.admitted(ended.chain, reads_logits=ended.reads_logits)
                restored.append((handle, ended.chain))
        return restored

    def finish(self, admitted: Admitted) -> None:
        """Refuse those of these requests that are lost."""
        for pending, _ in admitted:
            if (refusal := self.take_error(pending.candidate)) is not None:
                pending.handle, pending.error = None, refusal

    def refuse(self, frame: processing_pb2.AddRequests, error: LogitportError) -> None:
        """End the admissions of a frame's requests with an error."""
        for entry in frame.requests:
            if (pending := self._ended(entry)) is not None:
                self._refuse(pending, error)

    def _settle(
        self,
        entry: processing_pb2.SlottedRequest | processing_pb2.EndedAdmission,
        error: common_pb2.Error | None,
        reads_logits: bool,
        chain: processing_pb2.AdmittedChain,
    ) -> PendingRequest | None:
        """Record the end of an admission. Returns the pending request if it was admitted."""
        pending = self._ended(entry)
        if pending is None:
            return None
        if error is not None:
            self._refuse(pending, from_proto(error))
            return None
        self._hold(pending.candidate, reads_logits=reads_logits, chain=chain)
        pending.handle = pending.candidate
        return pending

    def _ended(self, entry: processing_pb2.SlottedRequest | processing_pb2.EndedAdmission) -> PendingRequest | None:
        """Move a pending request to `settled`. Returns None if there is no such request any more."""
        pending = self.pending.get(entry.slot)
        if pending is None or pending.candidate.generation != entry.generation:
            return None
        del self.pending[entry.slot]
        self.settled.append(pending)
        return pending

    def _refuse(self, pending: PendingRequest, error: LogitportError) -> None:
        handle = pending.candidate
        pending.error = self._explained(handle, error)
        handle.removed = True
        self._slots.release(handle.slot)

    def _hold(self, handle: Handle, *, reads_logits: bool, chain: processing_pb2.AdmittedChain) -> None:
        handle.admitted(chain, reads_logits=reads_logits)
        self.handles[handle.slot] = handle
        self.changes += 1

    def _explained(self, handle: Handle, error: LogitportError) -> LogitportError:
        """Replace the error of an unknown processor by the reason for which the server has refused to register it."""
        if not isinstance(error, NotFound):
            return error
        return next((self.refused[it] for it in handle.digests() if it in self.refused), error)


def late_error(handle: Handle) -> ProcessorFailed:
    """Make the error for a request whose step comes before the end of its admission on a new connection."""
    return ProcessorFailed(
        f"request {handle.request_id!r}: the connection to its server was lost, and the next server has not loaded its "
        "processors yet; the other requests continue without it: add the request again with its tokens so far",
        code=ProcessorFailed.TIMED_OUT,
    )
