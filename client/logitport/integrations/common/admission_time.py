"""Admissions of an engine's new requests: begun together, and waited for a bounded time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from logitport.errors import ProcessorFailed, ServerUnavailable
from logitport.integrations.common.circuit_breaker import is_session_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.session import Handle, PendingRequest, Session
    from logitport.shipping.request import Request

_K = TypeVar("_K")

# The front end has tried and timed the chains, so that an engine rarely waits for so long.
MAX_SECONDS = 5.0


def begin_together(
    session: Session, requests: Mapping[_K, Request]
) -> tuple[dict[_K, PendingRequest], dict[_K, Exception]]:
    """Begin the admissions of these requests with one frame, because each frame waits for the server.

    Returns:
        The pending requests, and the errors of those that cannot be sent.

    Raises:
        ServerUnavailable, SessionClosed: the session failed, see `is_session_error`.
    """
    try:
        return dict(zip(requests, session.begin_add(requests.values()))), {}  # noqa: B905
    except Exception as error:
        if is_session_error(error):
            raise
        if len(requests) == 1:
            return {}, dict.fromkeys(requests, error)
    begun: dict[_K, PendingRequest] = {}
    errors: dict[_K, Exception] = {}
    for key, request in requests.items():  # none was begun: find those that cannot be sent
        one, error_of_one = begin_together(session, {key: request})
        begun |= one
        errors |= error_of_one
    return begun, errors


class AdmissionTime:
    """Time for all admissions of a step: `MAX_SECONDS`. It begins again when the session has reconnected.

    A session waits for a lost service, and then begins the admissions again: the service is the cause of that time, not
    the processors of a request.

    Args:
        session: the session of the admissions.
        seconds: another time than `MAX_SECONDS`.
    """

    def __init__(self, session: Session, seconds: float | None = None) -> None:
        self._session = session
        self._seconds = MAX_SECONDS if seconds is None else seconds
        self._begin()

    def result(self, pending: PendingRequest) -> Handle:
        """Wait for the end of an admission. When the time is over, cancel it.

        Raises:
            ProcessorFailed: the admission was cancelled.
            LogitportError: as `PendingRequest.result` and `PendingRequest.cancel`.
        """
        while True:
            if self._has_reconnected():
                self._begin()
            try:
                return pending.result(max(0.0, self._deadline - time.monotonic()))
            except ServerUnavailable as error:
                if not error.timed_out:
                    raise
                if not self._has_reconnected():
                    break
        pending.cancel()  # raises if it is the server that does not reply
        raise ProcessorFailed(
            f"its processors took more than {self._seconds:g} s to admit it again in the engine; move slow work from "
            "validate_params and start to __init__",
            code=ProcessorFailed.TIMED_OUT,
        )

    def _begin(self) -> None:
        self._reconnects = self._session.reconnects
        self._deadline = time.monotonic() + self._seconds

    def _has_reconnected(self) -> bool:
        return self._session.reconnects != self._reconnects
