"""Limits how long a step of an engine waits for the admissions of its requests: all its requests wait, too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed, ServerUnavailable

if TYPE_CHECKING:
    from logitport.session.frames import Handle
    from logitport.session.pending_request import PendingRequest
    from logitport.session.session import Session

# The front end has tried and timed the chains, so that an engine rarely waits for so long.
MAX_SECONDS = 5.0


class AdmissionTime:
    """Time for all admissions of a step: `MAX_SECONDS`. It begins again when the session has reconnected.

    A session waits for a lost service, and then begins the admissions again: the service is the cause of that time, not
    the processors of a request.

    Args:
        session: the session of the admissions.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
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
            f"its processors took more than {MAX_SECONDS:g} s to admit it again in the engine; move slow work from "
            "validate_params and start to __init__",
            code=ProcessorFailed.TIMED_OUT,
        )

    def _begin(self) -> None:
        self._reconnects = self._session.reconnects
        self._deadline = time.monotonic() + MAX_SECONDS

    def _has_reconnected(self) -> bool:
        return self._session.reconnects != self._reconnects
