"""The requests that a session holds, and what becomes of them when the server forgets."""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from logitport.errors import (
    InternalError,
    LimitExceeded,
    LogitportError,
    ServerUnavailable,
    SessionClosed,
    StateLost,
    UnknownProcessor,
    UnknownRequest,
    from_proto,
)
from logitport.session.frames import Handle, add_frames
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.request import Request
    from logitport.session.channel import FrameChannel

_T = TypeVar("_T")

# Between two attempts to bring a session back, with jitter: engines that lost one server must not all come at once.
_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 2.0


class SessionRequests:
    """Handles by slot.

    Args:
        conversation: with the server.
        restore: registers again what a new server lacks of what the client had registered; see `Registrations`.
        reconnect_seconds: how long to look for a new server; with 0 there is one attempt.

    Attributes:
        lost: why requests that the server does not hold any more are not brought back.
        resyncs: how often a history was sent again because the server's was another one.
    """

    def __init__(
        self, channel: FrameChannel, restore: Callable[[], dict[str, LogitportError]], reconnect_seconds: float
    ) -> None:
        self._channel = channel
        self._restore = restore
        self._reconnect_seconds = reconnect_seconds
        self._handles: dict[int, Handle] = {}
        self._closed = False
        # Slots that were used and are free again; the next one that never was is `_unused_slot`.
        self._free_slots: list[int] = []
        self._unused_slot = 0
        self._generation = 0
        self.lost: dict[Handle, LogitportError] = {}
        self.resyncs = 0

    def __len__(self) -> int:
        return len(self._handles)

    def check(self, handle: Handle) -> None:
        """Raises UnknownRequest if the handle is not on the roster, SessionClosed after `clear`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        if not isinstance(handle, Handle):
            kind = type(handle).__name__
            raise UnknownRequest(f"a value of type {kind} is no request of this session: pass what Session.add gave")
        if self._handles.get(handle.slot) is not handle:
            raise UnknownRequest(f"{handle!r} is no request of this session: never added, removed, or of another one")

    def add(self, request: Request) -> Handle:
        """Admit a request. Raises as `Session.add`."""
        most = self._channel.opened.max_requests
        if len(self._handles) >= most:
            raise LimitExceeded(f"all {most} slots are taken; remove requests that have ended, or raise max_requests")
        handle = Handle(self._free_slots[0] if self._free_slots else self._unused_slot, self._generation, request)
        (frame,) = add_frames([handle])
        added = self.exchange(processing_pb2.SessionRequest(add=frame)).added
        for failure in added.failures:
            raise from_proto(failure.error)
        if len(added.reads_logits) != 1:
            raise InternalError(f"one request was added, and the server answered for {len(added.reads_logits)}")
        handle.reads_logits = bool(added.reads_logits[0])
        for chain in added.chains:
            handle.pin(chain.processors)
        self._generation += 1
        if handle.slot == self._unused_slot:
            self._unused_slot += 1
        else:
            heapq.heappop(self._free_slots)
        self._handles[handle.slot] = handle
        return handle

    def remove(self, handle: Handle) -> None:
        """Drop a request. Raises UnknownRequest."""
        self.check(handle)
        del self._handles[handle.slot]
        handle.removed = True
        self.lost.pop(handle, None)
        heapq.heappush(self._free_slots, handle.slot)
        self._drop([handle])

    def give_up(self, errors: Mapping[Handle, LogitportError]) -> None:
        """These requests stay on the roster, but go no further: the server drops them, and each step tells why."""
        self.lost.update(errors)
        self._drop(list(errors))

    def clear(self) -> None:
        """Forget everything; the session is closed."""
        self._handles.clear()
        self._closed = True

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """As `FrameChannel.exchange`; if the connection breaks, on a new one."""
        return self.with_reconnect(lambda: self._channel.exchange(frame))

    def with_reconnect(self, call: Callable[[], _T]) -> _T:
        """What `call` returns; if the connection breaks, what it returns on a new one. Not to be nested.

        Raises:
            ServerUnavailable: no server that stays came within `reconnect_seconds`.
        """
        try:
            return call()
        except ServerUnavailable:
            return self._healed(call)

    def _healed(self, call: Callable[[], _T]) -> _T:
        deadline = time.monotonic() + self._reconnect_seconds

        def attempt() -> _T:
            self._recover(max(0.0, deadline - time.monotonic()))
            return call()

        # tenacity is a dependency for this one call. A loop of our own lost: it would be a retry policy to maintain.
        # gRPC's own policy lost: it repeats one RPC, and this is several (connect, register, replay, call).
        retrying = Retrying(
            retry=retry_if_exception_type(ServerUnavailable),
            wait=wait_random_exponential(multiplier=_FIRST_BACKOFF_SECONDS, max=_MAX_BACKOFF_SECONDS),
            stop=stop_after_delay(self._reconnect_seconds),
            reraise=True,
        )
        return retrying(attempt)

    def resend(self, handles: Sequence[Handle]) -> None:
        """Send these requests again with the histories that they have now; who is refused is `lost`."""
        self.resyncs += len(handles)
        self._send(handles)

    def _recover(self, wait_seconds: float) -> None:
        """Connect again, and bring back every request whose state follows from its history; the others are `lost`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        self._channel.reopen(wait_seconds)
        refused = self._restore()
        for handle in self._handles.values():
            if handle.processed and handle not in self.lost:
                self.lost[handle] = StateLost(
                    f"request {handle.request_id!r}: the server that processed its logits is gone, and what its "
                    "processors remembered with it; remove the request and add it again"
                )
        self._send([handle for handle in self._handles.values() if handle not in self.lost])
        for handle, error in self.lost.items():
            if isinstance(error, UnknownProcessor):
                self.lost[handle] = next((refused[it] for it in handle.digests() if it in refused), error)

    def _drop(self, handles: Sequence[Handle]) -> None:
        removal = processing_pb2.RemoveRequests(
            slots=np.array([handle.slot for handle in handles], "<i4").tobytes(),
            generations=np.array([handle.generation for handle in handles], "<i4").tobytes(),
        )
        self.exchange(processing_pb2.SessionRequest(remove=removal))

    def _send(self, handles: Sequence[Handle]) -> None:
        for frame in add_frames(handles):
            try:
                added = self._channel.exchange(processing_pb2.SessionRequest(add=frame)).added
            except LimitExceeded as error:  # what this server takes may be less
                self.lost.update({self._handles[asked.slot]: error for asked in frame.requests})
                continue
            for failure in added.failures:
                if failure.slot in self._handles:
                    self.lost[self._handles[failure.slot]] = from_proto(failure.error)
