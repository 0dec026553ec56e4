"""Exceptions that the server did not expect, and shortages of the machine, as errors for clients."""

from __future__ import annotations

import logging

from logitport.errors import LimitExceeded, LogitportError
from logitport_session.resources import descriptors

logger = logging.getLogger(__name__)


def to_error(error: Exception, what: str) -> LogitportError:
    """Convert an unexpected exception. A defect of the server is logged; `what` says what it has ended."""
    if descriptors.is_shortage(error):
        return descriptors.shortage()
    if _is_shortage_of_memory(error):
        logger.error("%s failed for want of memory: %s", what, error)
        return LimitExceeded(
            f"{what} needs more memory than the session's process may have: send fewer requests at once, shorter "
            "ones or smaller frames, or have the server's operator lower --max-principal-memory and "
            "--max-message-bytes, or raise the memory of the machine or the container"
        )
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return LimitExceeded(
            f"{what} needs a thread, and the machine permits no more: try again later, or have the server's operator "
            "raise the limit of processes (ulimit -u, TasksMax= of systemd, pids.max of a container)"
        )
    logger.error("%s failed because of a defect of the server", what, exc_info=error)
    return LogitportError(f"a defect of the server: {error!r}")


def _is_shortage_of_memory(error: Exception) -> bool:
    # torch raises RuntimeError from its allocator for the CPU.
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
