"""Exceptions that the server did not expect, as errors for clients."""

from __future__ import annotations

import logging

from logitport.errors import LogitportError
from logitport_session import descriptors

logger = logging.getLogger(__name__)


def to_error(error: Exception, what: str) -> LogitportError:
    """Convert an unexpected exception. A defect of the server is logged; `what` says what it has ended."""
    if descriptors.is_shortage(error):
        return descriptors.shortage()
    logger.error("%s failed because of a defect of the server", what, exc_info=error)
    return LogitportError(f"a defect of the server: {error!r}")
