"""Describes and logs the requests that failed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from logitport.errors import LogitportError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """A request that was ended because its chain could not be applied.

    Attributes:
        request_id: vLLM's internal name: the public one with a suffix, and with a prefix if n > 1; "" if this vLLM does
            not show it.
        error: name of the error's class, such as "ProcessorFailed".
        message: the error's message.
    """

    request_id: str
    error: str
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
    failure = Failure(request_id, type(error).__name__, known.message)
    _logger.error(
        "request %r ends after %d ids by forcing id %d, because its logitport chain failed: %s: %s",
        request_id,
        output_length,
        forced_token_id,
        failure.error,
        known,
    )
    return failure
