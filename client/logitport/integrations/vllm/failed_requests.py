"""Describes requests that were ended because their chains could not be applied."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

# A failure that was not taken by then belongs to a request that was aborted, or to another front end.
_VALID_SECONDS = 60.0
_MAX_WAITING = 1024


@dataclass(frozen=True)
class Failure:
    """A request that was ended because its chain could not be applied.

    Attributes:
        request_id: vLLM's internal name: the public one with a suffix, and with a prefix if n > 1; "" if this vLLM does
            not show it.
        error: name of the error's class, such as "ProcessorFailed".
        code: its code.
        message: the error's message.
    """

    request_id: str
    error: str
    code: int
    message: str


def record(error: Exception, *, request_id: str, output_length: int, forced_token_id: int) -> Failure:
    """Log a failure, with the traceback inside the processor. Returns its description.

    Args:
        error: the cause.
        request_id: as in `Failure`.
        output_length: number of ids sampled with the chain applied; the forced id follows them.
        forced_token_id: the id that the request gets from then on.
    """
    known = error if isinstance(error, LogitportError) else LogitportError(f"{type(error).__name__}: {error}")
    failure = Failure(request_id, type(error).__name__, known.code, known.message)
    _log.error(
        "request %r ends after %d ids by forcing id %d, because its logitport chain failed: %s: %s",
        request_id,
        output_length,
        forced_token_id,
        failure.error,
        known,
    )
    return failure


class WaitingFailures:
    """The failures that a front end has received, until it answers their requests."""

    def __init__(self) -> None:
        self._received: BoundedTable[str, tuple[Failure, float]] = BoundedTable(_MAX_WAITING)

    def add(self, failure: Failure) -> None:
        """Add a failure, for a minute."""
        self._received[failure.request_id] = failure, time.monotonic()

    def waiting(self) -> Sequence[Failure]:
        """Return the failures that were not taken."""
        if not self._received:
            return ()
        oldest = time.monotonic() - _VALID_SECONDS
        for request_id in [name for name, (_, at) in self._received.items() if at < oldest]:
            del self._received[request_id]
        return [failure for failure, _ in self._received.values()]

    def take(self, failure: Failure) -> None:
        """Remove a failure that was reported."""
        self._received.pop(failure.request_id, None)
