"""Limits how long a step of the engine waits for the admissions of its requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logitport.errors import DeadlineExceeded

if TYPE_CHECKING:
    from logitport.session.frames import Handle
    from logitport.session.pending_request import PendingRequest
    from logitport.session.session import Session


class AdmissionTime:
    """Time for all admissions of a step. It begins again when the session has reconnected.

    A session waits for a lost service, and then begins the admissions again: the service is the cause of that time, not
    the processors of a request.

    Args:
        session: the session of the admissions.
        seconds: how long to wait.
    """

    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._begin()

    def result(self, pending: PendingRequest) -> Handle:
        """Wait for the end of an admission. Raises as `PendingRequest.result`."""
        while True:
            if self._has_reconnected():
                self._begin()
            try:
                return pending.result(max(0.0, self._deadline - time.monotonic()))
            except DeadlineExceeded:
                if not self._has_reconnected():
                    raise

    def _begin(self) -> None:
        self._reconnects = self._session.reconnects
        self._deadline = time.monotonic() + self._seconds

    def _has_reconnected(self) -> bool:
        return self._session.reconnects != self._reconnects
