"""A request that is admitted while the engine continues with its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from logitport.errors import NotFound, ServerUnavailable
from logitport.system.backoff import NONE, Backoff

if TYPE_CHECKING:
    from logitport.errors import LogitportError
    from logitport.session.handle import Handle

# Between two frames of `result`.
_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05


class Requests(Protocol):
    """The requests of the session: `SessionRequests`."""

    table: Any

    def collect(self) -> None: ...
    def cancel(self, pending: PendingRequest) -> None: ...


class PendingRequest:
    """A request that the server admits in the background. Returned by `Session.begin_add`.

    `Session.poll` returns it when its admission has ended: then either `handle` or `error` is set.

    Attributes:
        request_id: the request's.
        handle: for `Session.step`, if the request was admitted.
        error: why it was refused, as `Session.add` raises it.
        cancelled: whether it was cancelled, or its session was closed before the admission ended.
        candidate: the handle, which cannot be used before the admission has ended.
    """

    def __init__(self, requests: Requests, candidate: Handle) -> None:
        self._requests = requests
        self.candidate = candidate
        self.request_id = candidate.request_id
        self.handle: Handle | None = None
        self.error: LogitportError | None = None
        self.cancelled = False

    @property
    def done(self) -> bool:
        """Whether the admission has ended, or was cancelled."""
        return self.cancelled or self.handle is not None or self.error is not None

    def result(self, timeout: float | None = None) -> Handle:
        """Wait for the end of the admission, and return the handle. For an engine that has nothing to step.

        `Session.poll` does not return the request afterwards.

        Args:
            timeout: how long to wait, in seconds; None for no limit.

        Raises:
            ServerUnavailable: the admission has not ended within the timeout; it continues.
            NotFound: the request was cancelled, or its session was closed.
            LogitportError: the request was refused; as `Session.add`.
        """
        seconds = math.inf if timeout is None else timeout
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, NONE, seconds=seconds)
        self._requests.collect()
        while not self.done:
            if not backoff.wait():
                raise ServerUnavailable(
                    f"{self!r} was not admitted within {timeout:g} s; wait again, or cancel it", timed_out=True
                )
            self._requests.collect()
        self._requests.table.take_settled(self)
        if self.error is not None:
            raise self.error
        if self.handle is None or self.cancelled:
            raise NotFound(f"{self!r} was cancelled, or its session was closed; add the request again")
        return self.handle

    def cancel(self) -> None:
        """End the admission; if it has ended, remove the request. May be called twice."""
        self._requests.cancel(self)

    def __repr__(self) -> str:
        state = "pending"
        if self.done:
            state = "cancelled" if self.cancelled else "ready" if self.error is None else "refused"
        return f"<PendingRequest {self.request_id!r} {state}>"
