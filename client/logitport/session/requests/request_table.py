"""The requests that a session holds, by slot, and those whose admission has not ended."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import LimitExceeded, NotFound, ProcessorFailed, SessionClosed
from logitport.session.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from logitport.errors import LogitportError
    from logitport.session.requests.pending_request import PendingRequest
    from logitport.shipping.request import Request
    from logitport_proto import processing_pb2


class Entering(NamedTuple):
    """A request that takes part in steps before its admission has ended.

    Attributes:
        handle: the request.
        seconds: how long a step waits for the admission.
    """

    handle: Handle
    seconds: float


class RequestTable:
    """A map from slot to handle. Sends nothing. No generation is used twice.

    Attributes:
        handles: the requests that the server holds, by slot.
        changes: number of changes of `handles`.
        pending: the requests that the server admits in the background, by slot.
        entering: requests of `handles`, by slot, with a first admission that has not ended, or was not reported yet.
        settled: pending requests with an ended admission that `Session.poll` has not returned yet.
        restoring: requests of `handles`, by slot, that were sent again, and that the present server has not admitted.
        lost: the error of each request that the server does not hold any more and that is not sent again.
        refused: the error of each registration that the present server refused, by digest.
        has_programs: whether this process has run programs of a request, now or before.
        closed: whether the session is closed.
    """

    def __init__(self) -> None:
        self.handles: dict[int, Handle] = {}
        self.changes = 0
        self.pending: dict[int, PendingRequest] = {}
        self.entering: dict[int, Entering] = {}
        self.settled: list[PendingRequest] = []
        self.restoring: dict[int, Handle] = {}
        self.lost: dict[Handle, LogitportError] = {}
        self.refused: dict[str, LogitportError] = {}
        self.has_programs = False
        self.closed = False
        # Slots that were used and are free again. `_unused` is the lowest slot that was never used.
        self._free: list[int] = []
        self._unused = 0
        self._generation = 0

    def __len__(self) -> int:
        """Number of requests that a new connection gets."""
        return len(self.handles) + len(self.pending)

    @property
    def kept(self) -> list[Handle]:
        """The requests that are not lost."""
        return [handle for handle in self.handles.values() if handle not in self.lost]

    @property
    def candidates(self) -> list[Handle]:
        """The handles of the pending requests."""
        return [pending.candidate for pending in self.pending.values()]

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

    def new_handles(self, requests: Sequence[Request], limit: int) -> list[Handle]:
        """Make the handles of new requests, for the lowest free slots. Raises LimitExceeded if there are too few."""
        if len(self) >= limit and requests:
            raise LimitExceeded(f"all {limit} slots are taken; remove requests that have ended, or raise max_requests")
        if len(self) + len(requests) > limit:
            raise LimitExceeded(
                f"{len(requests)} requests were added together, but {limit - len(self)} of {limit} slots are free; add "
                "fewer, remove requests that have ended, or raise max_requests"
            )
        slots = heapq.nsmallest(len(requests), self._free)
        slots += range(self._unused, self._unused + len(requests) - len(slots))
        first, self._generation = self._generation, self._generation + len(requests)  # each is used once
        return [
            Handle(slot, first + index, request)
            for index, (slot, request) in enumerate(zip(slots, requests, strict=True))
        ]

    def hold(self, handle: Handle) -> None:
        """Record that the server has admitted a new request."""
        self._occupy(handle.slot)
        self._hold(handle)

    def hold_pending(self, pending: PendingRequest) -> None:
        """Record that the server begins to admit a new request."""
        self._occupy(pending.candidate.slot)
        self.pending[pending.candidate.slot] = pending

    def enter(self, handle: Handle, seconds: float) -> None:
        """Record that a new request takes part in steps from now on; see `Entering`."""
        self.hold(handle)
        self.entering[handle.slot] = Entering(handle, seconds)

    def awaited(self, entry: processing_pb2.SlottedRequest | processing_pb2.EndedAdmission) -> Handle | None:
        """Return the pending, entering or restoring request with this slot and generation, or None."""
        pending, entering = self.pending.get(entry.slot), self.entering.get(entry.slot)
        handle = self.restoring.get(entry.slot) if pending is None else pending.candidate
        handle = handle if entering is None else entering.handle
        return handle if handle is not None and handle.generation == entry.generation else None

    def admit(self, handle: Handle) -> None:
        """Record that the server has admitted a pending, entering or restoring request."""
        self.restoring.pop(handle.slot, None)
        self.entering.pop(handle.slot, None)
        if (pending := self.pending.pop(handle.slot, None)) is not None:
            pending.handle = handle
            self.settled.append(pending)
            self._hold(handle)

    def refuse(self, handle: Handle, error: LogitportError) -> None:
        """Record that the server has refused a request: a pending one, or another one, which becomes `lost`."""
        if isinstance(error, NotFound):  # it lacks a processor, because it has refused to register it
            error = next((self.refused[digest] for digest in handle.digests() if digest in self.refused), error)
        if (pending := self.pending.pop(handle.slot, None)) is None:
            self.lose(handle, error)
            return
        pending.error = error
        self.settled.append(pending)
        self._release(handle)

    def remove(self, handles: Sequence[Handle]) -> None:
        """Remove requests, and free their slots.

        Raises:
            NotFound: the session does not hold a handle, or one occurs twice. None is removed.
        """
        for handle in handles:
            self.check(handle)
        if len(set(handles)) < len(handles):
            raise NotFound("a handle occurs twice, and would be removed twice; pass each handle once")
        for handle in handles:
            del self.handles[handle.slot]
            self.changes += 1
            self.restoring.pop(handle.slot, None)
            self.entering.pop(handle.slot, None)
            self.lost.pop(handle, None)
            self._release(handle)

    def lose(self, handle: Handle, error: LogitportError) -> None:
        """Add a request to `lost`."""
        self.lost[handle] = error
        self.restoring.pop(handle.slot, None)
        self.entering.pop(handle.slot, None)

    def cancel(self, pending: PendingRequest) -> bool:
        """Remove a request in any state of its admission, and free its slot. Returns whether it was there."""
        handle = pending.candidate
        self.take_settled(pending)
        if self.pending.get(handle.slot) is pending:
            del self.pending[handle.slot]
            self._release(handle)
        elif not self.discard(handle):
            return False
        pending.cancelled = True
        return True

    def discard(self, handle: Handle) -> bool:
        """Remove a request, if it is there. Returns whether it was."""
        if self.handles.get(handle.slot) is not handle:
            return False
        self.remove([handle])
        return True

    def take_settled(self, pending: PendingRequest) -> None:
        """Leave this request out of `settled`."""
        self.settled = [other for other in self.settled if other is not pending]

    def clear(self) -> None:
        """Drop all handles, cancel the pending requests, and mark the session as closed."""
        self.handles.clear()
        self.changes += 1
        for pending in self.pending.values():
            pending.cancelled = pending.candidate.removed = True
        self.pending.clear()
        self.entering.clear()
        self.restoring.clear()
        self.closed = True

    def is_restoring(self, handle: Handle) -> bool:
        """Whether the request is one of `restoring`."""
        return self.restoring.get(handle.slot) is handle

    def entering_of(self, handles: Collection[Handle]) -> list[Entering]:
        """Return those of these requests that are `entering`."""
        return [each for each in self.entering.values() if each.handle in handles]

    def _hold(self, handle: Handle) -> None:
        self.handles[handle.slot] = handle
        self.changes += 1

    def _occupy(self, slot: int) -> None:
        """Take a slot of `new_handles`, in its order. Lower slots may have become free since."""
        if slot == self._unused:
            self._unused += 1
        else:
            self._free.remove(slot)
            heapq.heapify(self._free)

    def _release(self, handle: Handle) -> None:
        handle.removed = True
        heapq.heappush(self._free, handle.slot)


def late_error(handle: Handle) -> ProcessorFailed:
    """Make the error for a request whose step comes before the end of its admission on a new connection."""
    return ProcessorFailed(
        f"request {handle.request_id!r}: the connection to its server was lost, and the next server has not loaded its "
        "processors yet; the other requests continue without it: add the request again with its tokens so far",
        code=ProcessorFailed.TIMED_OUT,
    )


def slow_error(seconds: float) -> ProcessorFailed:
    """Make the error for a request whose step has waited so long for its admission."""
    return ProcessorFailed(
        f"its processors took more than {seconds:g} s to admit it again in the engine; move slow work from "
        "validate_params and start to __init__",
        code=ProcessorFailed.TIMED_OUT,
    )
