"""The requests that a session holds, and their recovery after a lost connection."""

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

# Between two attempts to reconnect, with jitter: engines that lost one server must not all reconnect at once.
_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 2.0


class SessionRequests:
    """The requests of a session: a map from slot to handle.

    Args:
        channel: exchanges frames with the server.
        restore: registers the client's processors with a server that lacks them; see `Registrations.restore`.
        reconnect_seconds: how long to try to reconnect; with 0 there is one attempt.

    Attributes:
        lost: the error of each request that the server does not hold any more and that is not sent again.
        resyncs: how often a history was sent again because the server's history differed.
    """

    def __init__(
        self, channel: FrameChannel, restore: Callable[[], dict[str, LogitportError]], reconnect_seconds: float
    ) -> None:
        self._channel = channel
        self._restore = restore
        self._reconnect_seconds = reconnect_seconds
        self._handles: dict[int, Handle] = {}
        self._closed = False
        # Slots that were used and are free again. `_unused_slot` is the lowest slot that was never used.
        self._free_slots: list[int] = []
        self._unused_slot = 0
        self._generation = 0
        self.lost: dict[Handle, LogitportError] = {}
        self.resyncs = 0

    def __len__(self) -> int:
        return len(self._handles)

    def check(self, handle: Handle) -> None:
        """Raise UnknownRequest if the session does not hold the handle, SessionClosed after `clear`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        if not isinstance(handle, Handle):
            kind = type(handle).__name__
            raise UnknownRequest(f"a value of type {kind} is not a handle: pass the result of Session.add")
        if self._handles.get(handle.slot) is not handle:
            raise UnknownRequest(f"{handle!r} is not in this session: it was removed, or belongs to another session")

    def add(self, request: Request) -> Handle:
        """Admit a request. Raises as `Session.add`."""
        limit = self._channel.opened.max_requests
        if len(self._handles) >= limit:
            raise LimitExceeded(f"all {limit} slots are taken; remove requests that have ended, or raise max_requests")
        handle = Handle(self._free_slots[0] if self._free_slots else self._unused_slot, self._generation, request)
        (frame,) = add_frames([handle])
        added = self.exchange(processing_pb2.SessionRequest(add=frame)).added
        for failure in added.failures:
            raise from_proto(failure.error)
        if len(added.reads_logits) != 1:
            raise InternalError(f"one request was added, but the server's reply is for {len(added.reads_logits)}")
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

    def fail(self, errors: Mapping[Handle, LogitportError]) -> None:
        """Fail requests: the server drops them; the session keeps their handles, and each step reports the error."""
        self.lost.update(errors)
        self._drop(list(errors))

    def clear(self) -> None:
        """Drop all handles and mark the session as closed."""
        self._handles.clear()
        self._closed = True

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

        # tenacity is a dependency for this one call. Not a loop of our own: that is a retry policy to maintain.
        # Not gRPC's retry policy: it repeats one RPC, and an attempt is several (connect, register, replay, call).
        retrying = Retrying(
            retry=retry_if_exception_type(ServerUnavailable),
            wait=wait_random_exponential(multiplier=_FIRST_BACKOFF_SECONDS, max=_MAX_BACKOFF_SECONDS),
            stop=stop_after_delay(self._reconnect_seconds),
            reraise=True,
        )
        return retrying(attempt)

    def resend(self, handles: Sequence[Handle]) -> None:
        """Send these requests again with their present histories; refused ones are added to `lost`."""
        self.resyncs += len(handles)
        self._send(handles)

    def _recover(self, wait_seconds: float) -> None:
        """Reconnect, and send again every request with a state that follows from its history; others become `lost`."""
        if self._closed:
            raise SessionClosed("the session is closed; open another with Client.session")
        self._channel.reopen(wait_seconds)
        refused = self._restore()
        for handle in self._handles.values():
            if handle.processed and handle not in self.lost:
                self.lost[handle] = StateLost(
                    f"request {handle.request_id!r}: the connection to the server that processed its logits was lost, "
                    "and with it the state of its processors; remove the request and add it again"
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
            except LimitExceeded as error:  # this server's message limit may be lower than the previous one's
                self.lost.update({self._handles[entry.slot]: error for entry in frame.requests})
                continue
            for failure in added.failures:
                if failure.slot in self._handles:
                    self.lost[self._handles[failure.slot]] = from_proto(failure.error)
